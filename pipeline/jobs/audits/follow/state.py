"""The progress of audits that go on, as a file in the report's directory.

*Invariants*: the file is replaced by one rename, after everything that a run writes besides; after
a crash at any moment the next run repeats the window that was not stored. One process at a time
writes to a directory.

Refuses: progress of other topics, of another cluster, of a topic that was created again, of a later
version; nothing in the directory changes then.
"""

import fcntl
import json
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stilltide.connectors.errors import FatalError
from stilltide.pipeline.jobs.audits.carried import CarriedCount
from stilltide.pipeline.jobs.audits.follow.totals import CheckTotal, Totals
from stilltide.pipeline.jobs.audits.report import Check
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId

PROGRESS = "progress.json"
_LOCK = ".lock"
_VERSION = 1

Figures = Mapping[str, int]


@dataclass(frozen=True)
class State:
    """What the runs so far have found.

    Attributes:
        run: number of the last run; 0 if none has ended.
        topic_ids: Kafka's id of each topic.
        checks: names of the checks that run.
        origins: where the first window of each partition began.
        positions: where the next window begins.
        markers_until: by partition, the end offset of the markers that were known.
        crossing: counts of transactions that end at or past the next window's begin.
        totals: results of the checks.
        figures: counts of each partition's records and batches.
    """

    run: int = 0
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    checks: Sequence[str] = ()
    origins: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    positions: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    markers_until: Mapping[TopicPartition, EndOffset] = field(default_factory=dict)
    crossing: tuple[CarriedCount, ...] = ()
    totals: Totals = field(default_factory=dict)
    figures: Mapping[TopicPartition, Figures] = field(default_factory=dict)


def load_state(directory: Path) -> State:
    """The stored state; an empty one in a new directory.

    Raises:
        FatalError: the file is damaged, or of a later version.
    """
    path = directory / PROGRESS
    if not path.exists():
        return State()
    try:
        return _state(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FatalError(
            f"{path} does not hold the progress of audits",
            detail=f"{type(error).__name__}: {error}",
            hint="restore the file, or begin with another directory",
        ) from error


_OTHER = "use another --report directory"


def check_belongs(state: State, topics: Sequence[str], checks: Sequence[str]) -> None:
    """Returns if the state is of topics of these names, and of these checks.

    Raises:
        FatalError: it is of others.
    """
    if not state.run:
        return
    if sorted(state.topic_ids) != sorted(set(topics)):
        raise FatalError(
            "the directory holds audits of other topics",
            detail=f"audited until now: {', '.join(sorted(state.topic_ids))}",
            hint=_OTHER,
        )
    if list(state.checks) != list(checks):
        raise FatalError(
            "the directory holds audits with other checks",
            detail=f"checked until now: {', '.join(state.checks)}",
            hint=f"give --update-index as before, or {_OTHER}",
        )


def check_unchanged(state: State, topic_ids: Mapping[str, bytes]) -> None:
    """Returns if the topics are still those that the state is of.

    Raises:
        FatalError: a topic of the name is another one.
    """
    for topic, known in state.topic_ids.items():
        if topic_ids[topic] != known:
            raise FatalError(
                "the directory holds audits of another topic of this name",
                detail="the topic was created again since, or is on another cluster",
                hint=_OTHER,
                topic=topic,
            )


def store_state(directory: Path, state: State) -> None:
    """Replaces the stored state; durable when the call returns."""
    staged = directory / f".{PROGRESS}"
    with staged.open("w") as file:
        json.dump(_body(state), file)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(directory / PROGRESS)
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(directory: Path) -> Generator[None]:
    """Keeps other processes from the directory during the block; the lock dies with the process.

    Raises:
        FatalError: another process has the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FatalError(
                f"another process writes its audits to {directory}",
                hint="run one `stilltide audit follow` for each directory",
            ) from error
        yield


def _body(state: State) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "run": state.run,
        "checks": list(state.checks),
        "topic_ids": {topic: known.hex() for topic, known in state.topic_ids.items()},
        **{
            name: [[*data, value] for data, value in sorted(getattr(state, name).items())]
            for name in ("origins", "positions", "markers_until", "figures")
        },
        "crossing": [[*it.data, *it.txn, it.first, it.last, it.rows] for it in state.crossing],
        "totals": {check.value: total.to_dict() for check, total in state.totals.items()},
    }


def _state(body: Mapping[str, Any]) -> State:
    if body["version"] != _VERSION:
        raise ValueError(f"version {body['version']}")

    def by_partition(name: str) -> dict[TopicPartition, Any]:
        return {TopicPartition(topic, number): value for topic, number, value in body[name]}

    return State(
        run=int(body["run"]),
        checks=list(body["checks"]),
        topic_ids={topic: bytes.fromhex(text) for topic, text in body["topic_ids"].items()},
        origins=by_partition("origins"),
        positions=by_partition("positions"),
        markers_until=by_partition("markers_until"),
        figures=by_partition("figures"),
        crossing=tuple(
            CarriedCount(TopicPartition(topic, number), TxnId(coordinator, sequence), *counts)
            for topic, number, coordinator, sequence, *counts in body["crossing"]
        ),
        totals={Check(name): CheckTotal.from_dict(it) for name, it in body["totals"].items()},
    )
