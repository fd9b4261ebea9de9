"""The rows that `stilltide topics check` prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from stilltide.pipeline.cli.common.output import Row
from stilltide.pipeline.core.topic_state import (
    PARTITIONS,
    REPLICATION_FACTOR,
    Remedy,
    Shortfall,
)
from stilltide.pipeline.drivers.shared.topic_findings import TopicFinding
from stilltide.schemas.topics import MIN_INSYNC_REPLICAS

_COLUMNS = (PARTITIONS, REPLICATION_FACTOR, MIN_INSYNC_REPLICAS)
_STEPS = {
    Remedy.ALTER: "stilltide topics check --apply",
    Remedy.REASSIGN: "stilltide topics check --apply plans it for kafka-reassign-partitions.sh",
}
_CREATED_BY_WORKERS = "a worker creates the topic: stilltide worker"
_CREATED_BY_KAFKA = "Kafka creates the topic at its first use"


def change_rows(
    changes: Mapping[str, Mapping[str, str]], found: Sequence[TopicFinding]
) -> list[Row]:
    """A row for each config that is to be altered."""
    actual = {(one.spec.name, it.what): it.actual for one in found for it in one.shortfalls}
    return [
        {"topic": topic, "config": name, "from": actual[topic, name], "to": value}
        for topic, configs in changes.items()
        for name, value in configs.items()
    ]


def json_row(one: TopicFinding) -> Row:
    """A topic with everything that is expected and found."""
    expected, actual = _figures(one)
    row: dict[str, Any] = {"topic": one.spec.name, "exists": one.state is not None}
    for name in _COLUMNS:
        key = name.replace(".", "_")
        row |= {key: actual.get(name), f"expected_{key}": expected[name]}
    row["falls_short"] = [
        {
            "what": it.what,
            "expected": it.expected,
            "actual": it.actual,
            "remedy": it.remedy.value,
            "next_step": _step(it),
        }
        for it in one.shortfalls
    ]
    return row | {"good": one.good, "next_step": _next_step(one)}


def table_rows(found: Sequence[TopicFinding]) -> list[Row]:
    """A row for each topic: figures, then other configs that fall short, and the next step."""
    rows: list[Row] = []
    for one in found:
        expected, actual = _figures(one)
        short = {it.what: it for it in one.shortfalls}
        row: dict[str, Any] = {"topic": one.spec.name}
        for name in _COLUMNS:
            figure = str(actual.get(name, "-"))
            row[name] = f"{figure}, not {expected[name]}" if name in short else figure
        others = [it for name, it in short.items() if name not in _COLUMNS]
        lines = [f"{it.what}={it.actual}, not {it.expected}" for it in others]
        row["falls short"] = "\n".join(lines) if one.state or one.good else "missing"
        rows.append(row | {"next step": _next_step(one)})
    return rows


def _figures(one: TopicFinding) -> tuple[dict[str, int | None], dict[str, int]]:
    """Expected and actual figures of the columns; nothing actual of a topic that is missing."""
    spec, state = one.spec, one.state
    assert spec.replicas is not None
    unknown = one.is_kafkas_own and state is None
    expected: dict[str, int | None] = {
        PARTITIONS: None if unknown else spec.partition_count,
        REPLICATION_FACTOR: spec.replicas.factor,
        MIN_INSYNC_REPLICAS: spec.replicas.min_insync,
    }
    if state is None:
        return expected, {}
    return expected, {
        PARTITIONS: len(state.placements),
        REPLICATION_FACTOR: min(len(it.replicas) for it in state.placements),
        MIN_INSYNC_REPLICAS: int(state.configs.get(MIN_INSYNC_REPLICAS) or 1),
    }


def _next_step(one: TopicFinding) -> str:
    if one.state is None:
        return _CREATED_BY_KAFKA if one.is_kafkas_own else _CREATED_BY_WORKERS
    return "\n".join(dict.fromkeys(map(_step, one.shortfalls)))


def _step(short: Shortfall) -> str:
    return short.step or _STEPS[short.remedy]
