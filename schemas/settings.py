"""Codec of the settings topic: dynamic settings by name.

*Source*: system.md, Topics: `settings`, compacted, key = setting name.
"""

from collections.abc import Mapping
from types import MappingProxyType

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.v1.settings_pb2 import Setting

SettingValue = bool | int | str
"""What a dynamic setting may hold."""

TXN_LOG_BATCHING_ENABLED = "txn_log_batching_enabled"
PENDING_ACK_BATCHING_ENABLED = "pending_ack_batching_enabled"

KINDS: Mapping[str, type[SettingValue]] = MappingProxyType(
    {TXN_LOG_BATCHING_ENABLED: bool, PENDING_ACK_BATCHING_ENABLED: bool}
)
"""The dynamic settings there are, and what each holds; names are those of static settings."""

_SUBSCRIPTION = "subscription/"
"""Begins the names of settings that say whether a group is replicated: then topic and group."""


def subscription_setting(topic: str, group: str) -> str:
    """Name of the setting that says whether a group's position on a topic is replicated."""
    return f"{_SUBSCRIPTION}{topic}/{group}"


def subscription_of(name: str) -> tuple[str, str] | None:
    """Topic and group of such a setting; None: it is another one."""
    topic, slash, group = name.removeprefix(_SUBSCRIPTION).partition("/")
    return (topic, group) if name.startswith(_SUBSCRIPTION) and slash and topic else None


def kind_of(name: str) -> type[SettingValue] | None:
    """What a setting holds; None: there is no such setting."""
    return bool if subscription_of(name) else KINDS.get(name)


def encode(name: str, value: SettingValue | None, *, at_ms: int) -> tuple[bytes, bytes | None]:
    """Key and value that set `name`; None restores the default."""
    if value is None:
        return name.encode(), None
    body = Setting(changed_at_ms=at_ms)
    match value:
        case bool():  # before int: a bool is one
            body.flag = value
        case int():
            body.number = value
        case str():
            body.text = value
    return name.encode(), body.SerializeToString()


def decode(key: bytes | None, value: bytes | None) -> tuple[str, SettingValue | None]:
    """Name and value of a record; None: back to the default.

    Raises:
        DecodeError: not a setting.
    """
    try:
        name = (key or b"").decode()
        body = Setting() if value is None else Setting.FromString(value)
    except (ProtobufDecodeError, UnicodeDecodeError) as error:
        raise DecodeError("not a dynamic setting", detail=str(error)) from error
    if not name:
        raise DecodeError("a dynamic setting without a name")
    if value is None:
        return name, None
    match body.WhichOneof("value"):
        case "flag":
            return name, body.flag
        case "number":
            return name, body.number
        case "text":
            return name, body.text
        case _:
            raise DecodeError(f"dynamic setting {name!r} holds no value this program knows")
