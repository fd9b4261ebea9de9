"""The state of all clusters as JSON types: dicts, lists, strings, numbers.

*Invariants*: every part has `value`, `age_ms` and `problem`; names are those of the values' fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from stilltide.pipeline.core.status.findings import StatusFinding, needs_person
from stilltide.pipeline.core.status.values import Aged, GroupStatus, LinkStatus, SystemStatus


def plain(status: SystemStatus, findings: Sequence[StatusFinding]) -> dict[str, Any]:
    """The state and what was found in it."""
    return {
        "now_ms": status.now_ms,
        "needs_person": needs_person(findings),
        "findings": [_plain(one, status.now_ms) for one in findings],
        "clusters": [_plain(one, status.now_ms) for one in status.clusters],
        "links": _plain(status.links, status.now_ms),
        "groups": _plain(status.groups, status.now_ms),
        "audits": _plain(status.audits, status.now_ms),
    }


def _plain(value: Any, now_ms: int) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        named: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {str(name): _plain(item, now_ms) for name, item in named.items()}
    if isinstance(value, tuple):
        return _of_tuple(value, now_ms)  # pyright: ignore[reportUnknownArgumentType]
    if is_dataclass(value):
        members = {item.name: _plain(getattr(value, item.name), now_ms) for item in fields(value)}
        return _of_aged(value, members, now_ms) if isinstance(value, Aged) else members  # pyright: ignore[reportUnknownArgumentType]
    return value


def _of_aged(aged: Aged[Any], shown: dict[str, Any], now_ms: int) -> dict[str, Any]:
    return {
        "value": shown["value"],
        "age_ms": aged.age_ms(now_ms),
        "problem": aged.problem or None,
        "hint": aged.hint or None,
    }


def _of_tuple(value: tuple[Any, ...], now_ms: int) -> Any:
    names: Sequence[str] | None = getattr(value, "_fields", None)
    if names is None:
        return [_plain(one, now_ms) for one in value]
    members = {name: _plain(one, now_ms) for name, one in zip(names, value, strict=True)}
    if isinstance(value, LinkStatus):
        members["lag"] = value.lag
    if isinstance(value, GroupStatus):
        members |= {"read_again": value.read_again, "read_again_others": value.read_again_others}
    return members
