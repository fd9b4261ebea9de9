from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IncarnationOffsets(_message.Message):
    __slots__ = ("cluster", "incarnation", "bounds")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    incarnation: bytes
    bounds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cluster: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., bounds: _Optional[_Iterable[int]] = ...) -> None: ...

class ClusterPosition(_message.Message):
    __slots__ = ("cluster", "incarnation", "end_offset")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    incarnation: bytes
    end_offset: int
    def __init__(self, cluster: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., end_offset: _Optional[int] = ...) -> None: ...

class ReplicationSnapshotRequest(_message.Message):
    __slots__ = ("version", "id", "round", "incarnation", "decided_end")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DECIDED_END_FIELD_NUMBER: _ClassVar[int]
    version: int
    id: bytes
    round: int
    incarnation: bytes
    decided_end: int
    def __init__(self, version: _Optional[int] = ..., id: _Optional[bytes] = ..., round: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., decided_end: _Optional[int] = ...) -> None: ...

class ReplicationSnapshotResponse(_message.Message):
    __slots__ = ("version", "id", "round", "incarnation", "decided_end")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DECIDED_END_FIELD_NUMBER: _ClassVar[int]
    version: int
    id: bytes
    round: int
    incarnation: bytes
    decided_end: int
    def __init__(self, version: _Optional[int] = ..., id: _Optional[bytes] = ..., round: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., decided_end: _Optional[int] = ...) -> None: ...

class ReplicationSnapshot(_message.Message):
    __slots__ = ("id", "local_end", "positions", "started_ms", "completed_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_END_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_MS_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    local_end: int
    positions: _containers.RepeatedCompositeFieldContainer[ClusterPosition]
    started_ms: int
    completed_ms: int
    def __init__(self, id: _Optional[bytes] = ..., local_end: _Optional[int] = ..., positions: _Optional[_Iterable[_Union[ClusterPosition, _Mapping]]] = ..., started_ms: _Optional[int] = ..., completed_ms: _Optional[int] = ...) -> None: ...

class ReplicationSnapshots(_message.Message):
    __slots__ = ("version", "incarnation", "started_at", "snapshots")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    incarnation: bytes
    started_at: int
    snapshots: _containers.RepeatedCompositeFieldContainer[ReplicationSnapshot]
    def __init__(self, version: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., started_at: _Optional[int] = ..., snapshots: _Optional[_Iterable[_Union[ReplicationSnapshot, _Mapping]]] = ...) -> None: ...

class SubscriptionUpdate(_message.Message):
    __slots__ = ("version", "generation", "incarnation", "offset", "claims", "positions", "snapshot_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    generation: int
    incarnation: bytes
    offset: int
    claims: _containers.RepeatedCompositeFieldContainer[IncarnationOffsets]
    positions: _containers.RepeatedCompositeFieldContainer[ClusterPosition]
    snapshot_id: bytes
    def __init__(self, version: _Optional[int] = ..., generation: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., offset: _Optional[int] = ..., claims: _Optional[_Iterable[_Union[IncarnationOffsets, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[ClusterPosition, _Mapping]]] = ..., snapshot_id: _Optional[bytes] = ...) -> None: ...

class SubscriptionApplied(_message.Message):
    __slots__ = ("version", "generation", "incarnation", "offset", "applied_offset", "until", "lost")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPLIED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    version: int
    generation: int
    incarnation: bytes
    offset: int
    applied_offset: int
    until: int
    lost: _containers.RepeatedCompositeFieldContainer[IncarnationOffsets]
    def __init__(self, version: _Optional[int] = ..., generation: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., offset: _Optional[int] = ..., applied_offset: _Optional[int] = ..., until: _Optional[int] = ..., lost: _Optional[_Iterable[_Union[IncarnationOffsets, _Mapping]]] = ...) -> None: ...

class LinkBeat(_message.Message):
    __slots__ = ("version", "written_ms", "heard_age_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_MS_FIELD_NUMBER: _ClassVar[int]
    HEARD_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    written_ms: int
    heard_age_ms: int
    def __init__(self, version: _Optional[int] = ..., written_ms: _Optional[int] = ..., heard_age_ms: _Optional[int] = ...) -> None: ...

class LinkLastError(_message.Message):
    __slots__ = ("version", "happened_ms", "cause", "hint")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HAPPENED_MS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    version: int
    happened_ms: int
    cause: str
    hint: str
    def __init__(self, version: _Optional[int] = ..., happened_ms: _Optional[int] = ..., cause: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class OffsetBucket(_message.Message):
    __slots__ = ("version", "source_incarnation", "target_incarnation", "source_from", "source_to", "target_from", "target_to", "holes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FROM_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TO_FIELD_NUMBER: _ClassVar[int]
    TARGET_FROM_FIELD_NUMBER: _ClassVar[int]
    TARGET_TO_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    version: int
    source_incarnation: bytes
    target_incarnation: bytes
    source_from: int
    source_to: int
    target_from: int
    target_to: int
    holes: _containers.RepeatedCompositeFieldContainer[IncarnationOffsets]
    def __init__(self, version: _Optional[int] = ..., source_incarnation: _Optional[bytes] = ..., target_incarnation: _Optional[bytes] = ..., source_from: _Optional[int] = ..., source_to: _Optional[int] = ..., target_from: _Optional[int] = ..., target_to: _Optional[int] = ..., holes: _Optional[_Iterable[_Union[IncarnationOffsets, _Mapping]]] = ...) -> None: ...
