from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SnapshotRequest(_message.Message):
    __slots__ = ("client_id", "number", "reply_partition", "topic", "partition")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPLY_PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    client_id: bytes
    number: int
    reply_partition: int
    topic: str
    partition: int
    def __init__(self, client_id: _Optional[bytes] = ..., number: _Optional[int] = ..., reply_partition: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class SnapshotSummary(_message.Message):
    __slots__ = ("topic_id", "max_read_position", "aborted_count")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_READ_POSITION_FIELD_NUMBER: _ClassVar[int]
    ABORTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    max_read_position: int
    aborted_count: int
    def __init__(self, topic_id: _Optional[bytes] = ..., max_read_position: _Optional[int] = ..., aborted_count: _Optional[int] = ...) -> None: ...

class SnapshotRefused(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("number", "partition", "summary", "refused")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    number: int
    partition: int
    summary: SnapshotSummary
    refused: SnapshotRefused
    def __init__(self, number: _Optional[int] = ..., partition: _Optional[int] = ..., summary: _Optional[_Union[SnapshotSummary, _Mapping]] = ..., refused: _Optional[_Union[SnapshotRefused, _Mapping]] = ...) -> None: ...
