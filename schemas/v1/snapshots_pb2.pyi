from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AbortedSequences(_message.Message):
    __slots__ = ("coordinator", "sequence_deltas")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_DELTAS_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence_deltas: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, coordinator: _Optional[int] = ..., sequence_deltas: _Optional[_Iterable[int]] = ...) -> None: ...

class SequenceFloor(_message.Message):
    __slots__ = ("coordinator", "sequence")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class TrimPair(_message.Message):
    __slots__ = ("end_offset", "floors")
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLOORS_FIELD_NUMBER: _ClassVar[int]
    end_offset: int
    floors: _containers.RepeatedCompositeFieldContainer[SequenceFloor]
    def __init__(self, end_offset: _Optional[int] = ..., floors: _Optional[_Iterable[_Union[SequenceFloor, _Mapping]]] = ...) -> None: ...

class SnapshotPart(_message.Message):
    __slots__ = ("version", "aborted")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    version: int
    aborted: _containers.RepeatedCompositeFieldContainer[AbortedSequences]
    def __init__(self, version: _Optional[int] = ..., aborted: _Optional[_Iterable[_Union[AbortedSequences, _Mapping]]] = ...) -> None: ...

class SnapshotEnd(_message.Message):
    __slots__ = ("version", "topic_id", "max_read_position", "markers_covered_to", "first_part", "part_checksums", "unsealed", "floors", "floors_valid_from", "pairs")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_READ_POSITION_FIELD_NUMBER: _ClassVar[int]
    MARKERS_COVERED_TO_FIELD_NUMBER: _ClassVar[int]
    FIRST_PART_FIELD_NUMBER: _ClassVar[int]
    PART_CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    UNSEALED_FIELD_NUMBER: _ClassVar[int]
    FLOORS_FIELD_NUMBER: _ClassVar[int]
    FLOORS_VALID_FROM_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    version: int
    topic_id: bytes
    max_read_position: int
    markers_covered_to: int
    first_part: int
    part_checksums: _containers.RepeatedScalarFieldContainer[int]
    unsealed: _containers.RepeatedCompositeFieldContainer[AbortedSequences]
    floors: _containers.RepeatedCompositeFieldContainer[SequenceFloor]
    floors_valid_from: int
    pairs: _containers.RepeatedCompositeFieldContainer[TrimPair]
    def __init__(self, version: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., max_read_position: _Optional[int] = ..., markers_covered_to: _Optional[int] = ..., first_part: _Optional[int] = ..., part_checksums: _Optional[_Iterable[int]] = ..., unsealed: _Optional[_Iterable[_Union[AbortedSequences, _Mapping]]] = ..., floors: _Optional[_Iterable[_Union[SequenceFloor, _Mapping]]] = ..., floors_valid_from: _Optional[int] = ..., pairs: _Optional[_Iterable[_Union[TrimPair, _Mapping]]] = ...) -> None: ...

class SnapshotStar(_message.Message):
    __slots__ = ("version", "markers_covered_to", "floors")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MARKERS_COVERED_TO_FIELD_NUMBER: _ClassVar[int]
    FLOORS_FIELD_NUMBER: _ClassVar[int]
    version: int
    markers_covered_to: int
    floors: _containers.RepeatedCompositeFieldContainer[SequenceFloor]
    def __init__(self, version: _Optional[int] = ..., markers_covered_to: _Optional[int] = ..., floors: _Optional[_Iterable[_Union[SequenceFloor, _Mapping]]] = ...) -> None: ...
