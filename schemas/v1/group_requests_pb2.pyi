from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupReset(_message.Message):
    __slots__ = ("offset", "at_ms", "earliest", "latest", "generation", "until_ms", "stop")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    offset: int
    at_ms: int
    earliest: bool
    latest: bool
    generation: int
    until_ms: int
    stop: bool
    def __init__(self, offset: _Optional[int] = ..., at_ms: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., generation: _Optional[int] = ..., until_ms: _Optional[int] = ..., stop: _Optional[bool] = ...) -> None: ...

class GroupSync(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupSnapshot(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupRequest(_message.Message):
    __slots__ = ("client_id", "number", "reply_partition", "topic", "partition", "group", "reset", "sync", "snapshot")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPLY_PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    client_id: bytes
    number: int
    reply_partition: int
    topic: str
    partition: int
    group: str
    reset: GroupReset
    sync: GroupSync
    snapshot: GroupSnapshot
    def __init__(self, client_id: _Optional[bytes] = ..., number: _Optional[int] = ..., reply_partition: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., group: _Optional[str] = ..., reset: _Optional[_Union[GroupReset, _Mapping]] = ..., sync: _Optional[_Union[GroupSync, _Mapping]] = ..., snapshot: _Optional[_Union[GroupSnapshot, _Mapping]] = ...) -> None: ...

class GroupResetAnswer(_message.Message):
    __slots__ = ("from_offset", "to_offset", "generation", "moved")
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    from_offset: int
    to_offset: int
    generation: int
    moved: bool
    def __init__(self, from_offset: _Optional[int] = ..., to_offset: _Optional[int] = ..., generation: _Optional[int] = ..., moved: _Optional[bool] = ...) -> None: ...

class GroupSyncAnswer(_message.Message):
    __slots__ = ("offset", "unpublished", "standing")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNPUBLISHED_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    offset: int
    unpublished: int
    standing: str
    def __init__(self, offset: _Optional[int] = ..., unpublished: _Optional[int] = ..., standing: _Optional[str] = ...) -> None: ...

class GroupSnapshotAnswer(_message.Message):
    __slots__ = ("local_end", "started_ms", "completed_ms")
    LOCAL_END_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_MS_FIELD_NUMBER: _ClassVar[int]
    local_end: int
    started_ms: int
    completed_ms: int
    def __init__(self, local_end: _Optional[int] = ..., started_ms: _Optional[int] = ..., completed_ms: _Optional[int] = ...) -> None: ...

class GroupRefused(_message.Message):
    __slots__ = ("reason", "code", "members")
    REASON_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    code: str
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reason: _Optional[str] = ..., code: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupResponse(_message.Message):
    __slots__ = ("number", "partition", "reset", "sync", "snapshot", "refused")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    number: int
    partition: int
    reset: GroupResetAnswer
    sync: GroupSyncAnswer
    snapshot: GroupSnapshotAnswer
    refused: GroupRefused
    def __init__(self, number: _Optional[int] = ..., partition: _Optional[int] = ..., reset: _Optional[_Union[GroupResetAnswer, _Mapping]] = ..., sync: _Optional[_Union[GroupSyncAnswer, _Mapping]] = ..., snapshot: _Optional[_Union[GroupSnapshotAnswer, _Mapping]] = ..., refused: _Optional[_Union[GroupRefused, _Mapping]] = ...) -> None: ...
