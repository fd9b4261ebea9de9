from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Setting(_message.Message):
    __slots__ = ("flag", "number", "text", "changed_at_ms")
    FLAG_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    flag: bool
    number: int
    text: str
    changed_at_ms: int
    def __init__(self, flag: _Optional[bool] = ..., number: _Optional[int] = ..., text: _Optional[str] = ..., changed_at_ms: _Optional[int] = ...) -> None: ...
