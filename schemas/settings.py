"""Codec of the settings topic: dynamic settings by name.

*Source*: docs/protocols A7; the topic `settings` is compacted, and its key is the setting's name.
"""

from collections.abc import Mapping
from types import MappingProxyType

from stilltide.schemas.errors import DecodeError, ForeignKeyError, no_bytes
from stilltide.schemas.messages import from_bytes
from stilltide.schemas.topics import is_topic_name, is_topic_pattern
from stilltide.schemas.v1.settings_pb2 import Setting
from stilltide.schemas.values import ClusterName

SettingValue = bool | int | str
"""Types of a dynamic setting's value."""

TXN_LOG_BATCHING_ENABLED = "txn_log_batching_enabled"
PENDING_ACK_BATCHING_ENABLED = "pending_ack_batching_enabled"

KINDS: Mapping[str, type[SettingValue]] = MappingProxyType(
    {TXN_LOG_BATCHING_ENABLED: bool, PENDING_ACK_BATCHING_ENABLED: bool}
)
"""Names and types of the dynamic settings; each has the name of a static setting."""

_FORGOTTEN_LINK = "forgotten-link/"
"""Prefix of settings that hide a retired link into this cluster; the name of its source follows."""

_SUBSCRIPTION = "subscription/"
"""Prefix of settings that turn a group's replication on; topic and group follow."""


def subscription_setting(topic: str, group: str) -> str:
    """Name of the setting that turns the replication of a group's position on a topic on."""
    return f"{_SUBSCRIPTION}{topic}/{group}"


def subscription_of(name: str) -> tuple[str, str] | None:
    """Topic and group in the name of such a setting, each a name or a pattern (I15).

    None for another setting, or for a topic that is neither a legal name nor a pattern: Kafka
    refuses a whole question that contains a name that no topic can have.
    """
    topic, slash, group = name.removeprefix(_SUBSCRIPTION).partition("/")
    legal = is_topic_name(topic) or is_topic_pattern(topic)
    is_subscription = name.startswith(_SUBSCRIPTION) and slash and legal
    return (topic, group) if is_subscription else None


def forgotten_link_setting(source: ClusterName) -> str:
    """Name of the setting that hides a retired link; its value is when the link last told."""
    return f"{_FORGOTTEN_LINK}{source}"


def forgotten_link_of(name: str) -> ClusterName | None:
    """The link's source in the name of such a setting; None for another setting."""
    source = name.removeprefix(_FORGOTTEN_LINK)
    return ClusterName(source) if source and source != name else None


def kind_of(name: str) -> type[SettingValue] | None:
    """Type of a setting's value; None: there is no such setting."""
    if forgotten_link_of(name) is not None:
        return int
    return bool if subscription_of(name) else KINDS.get(name)


def encode(name: str, value: SettingValue | None, *, at_ms: int) -> tuple[bytes, bytes | None]:
    """Key and value that set `name`; None restores the default."""
    if value is None:
        return name.encode(), None
    body = Setting(changed_at_ms=at_ms)
    match value:
        case bool():  # before int, because a bool is an int too
            body.flag = value
        case int():
            body.number = value
        case str():
            body.text = value
    return name.encode(), body.SerializeToString()


def decode(key: bytes | None, value: bytes | None) -> tuple[str, SettingValue | None]:
    """Name and value of a record; the value None restores the default.

    Raises:
        DecodeError: not a setting.
    """
    try:
        name = (key or b"").decode()
    except UnicodeDecodeError as error:
        raise ForeignKeyError("not the name of a setting", detail=str(error)) from error
    if not name:
        raise ForeignKeyError("a dynamic setting without a name")
    if value is None:
        return name, None
    if not value:
        raise no_bytes(f"dynamic setting {name!r}")
    body = from_bytes(Setting, value, "a dynamic setting")
    match body.WhichOneof("value"):
        case "flag":
            return name, body.flag
        case "number":
            return name, body.number
        case "text":
            return name, body.text
        case _:
            raise DecodeError(f"dynamic setting {name!r} holds no value this program knows")
