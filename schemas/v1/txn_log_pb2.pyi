from schemas.v1 import requests_pb2 as _requests_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Fence(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Noop(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TimedOut(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class ForgetClients(_message.Message):
    __slots__ = ("client_ids",)
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    client_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, client_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TxnLogRecord(_message.Message):
    __slots__ = ("fence", "noop", "request", "timed_out", "ended", "forget_clients", "at_ms")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    NOOP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FORGET_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    noop: Noop
    request: _requests_pb2.Request
    timed_out: TimedOut
    ended: Ended
    forget_clients: ForgetClients
    at_ms: int
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., noop: _Optional[_Union[Noop, _Mapping]] = ..., request: _Optional[_Union[_requests_pb2.Request, _Mapping]] = ..., timed_out: _Optional[_Union[TimedOut, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., forget_clients: _Optional[_Union[ForgetClients, _Mapping]] = ..., at_ms: _Optional[int] = ...) -> None: ...
