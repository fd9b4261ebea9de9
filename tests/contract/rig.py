"""What a contract test holds: a connector under test, and hands to reach around it."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import EndReached, GroupReader, LogReader, Record, Run
from stilltide.connectors.ports.writers import LogWriter
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition

WAIT_S = 240.0


@dataclass
class Rig:
    """One connector, and what only its own broker can do."""

    address: str
    """Of the cluster that `unreachable` asks."""
    connector: Connector
    with_queue_of: Callable[[int], Connector]
    """A connector of the same cluster whose writers queue so few records."""
    unreachable: Callable[[], Connector]
    """A connector of a cluster that does not answer, with time-outs of a second."""
    helper: LogWriter
    """Writes what a test of something else needs; opened once, because that takes Kafka 0.5 s."""
    delete_topic: Callable[[str], None]
    """Deletes a topic, as no port does."""


@dataclass
class Reports:
    """Collects delivery reports."""

    seen: list[tuple[int, ConnectorError | None, int]] = field(default_factory=list)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def of(self, number: int) -> Callable[[ConnectorError | None, int], None]:
        """The callback of one append."""

        def delivered(error: ConnectorError | None, offset: int) -> None:
            self.seen.append((number, error, offset))
            self._more.set()

        return delivered

    async def wait_for(self, count: int) -> None:
        """Returns when `count` reports have come."""
        async with asyncio.timeout(WAIT_S):
            while len(self.seen) < count:
                self._more.clear()
                await self._more.wait()

    @property
    def offsets(self) -> list[int]:
        """Of the reports so far, in order; all must be good."""
        assert all(error is None for _, error, _ in self.seen), self.seen
        return [offset for _, _, offset in self.seen]


async def create(rig: Rig, name: str, partitions: int = 2, **configs: str) -> None:
    """Creates a topic; `_` in config names stands for a dot."""
    admin = rig.connector.admin()
    wanted = {key.replace("_", "."): value for key, value in configs.items()}
    await admin.ensure_topics([TopicSpec(name, partitions, wanted)])
    await admin.close()


async def trim(rig: Rig, data: TopicPartition, before: Offset) -> None:
    """Deletes the records before an offset."""
    admin = rig.connector.admin()
    await admin.delete_records({data: before})
    await admin.close()


async def write(rig: Rig, data: TopicPartition, *values: bytes | None) -> list[int]:
    """Appends values and returns their offsets."""
    reports = Reports()
    for number, value in enumerate(values):
        rig.helper.append(data, value, reports.of(number), key=b"k")
    await reports.wait_for(len(values))
    return reports.offsets


async def read(reader: LogReader) -> Sequence[Record | EndReached]:
    """One `read`, bounded."""
    async with asyncio.timeout(WAIT_S):
        return await reader.read()


async def read_records(reader: LogReader, count: int) -> list[Record]:
    """Reads until `count` records have come, no more."""
    records: list[Record] = []
    while len(records) < count:
        records.extend(item for item in await read(reader) if isinstance(item, Record))
    assert len(records) == count, records
    return records


async def read_to_ends(
    reader: LogReader, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, list[bytes | None]]:
    """Reads until each partition's end was reported at the given offset; values by partition."""
    values: dict[TopicPartition, list[bytes | None]] = {data: [] for data in ends}
    left = dict(ends)
    while left:
        for item in await read(reader):
            data = item.data
            if isinstance(item, Record):
                values[data].append(item.value)
            elif left.get(data) == item.end_offset:
                del left[data]
    return values


def records_of(items: Iterable[Run | EndReached]) -> list[Record]:
    """The records of what a group's reader returned, whose columns must be theirs."""
    found: list[Record] = []
    for item in items:
        if isinstance(item, Run):
            assert item.records
            assert {it.data for it in item.records} == {item.data}
            assert [it.offset for it in item.records] == [*item.offsets]
            assert [it.headers for it in item.records] == [*item.headers]
            found += item.records
    return found


class Membership:
    """A group member, reading all the time, and what its callbacks were told."""

    def __init__(self, reader: GroupReader) -> None:
        self.reader = reader
        self.events: list[tuple[str, object]] = []
        self.held: dict[TopicPartition, Offset] = {}
        self.records: list[Record] = []
        self.runs: list[Run] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def join(self, topic: str) -> None:
        """Subscribes and starts to read."""
        await self.reader.subscribe([topic], assigned=self._assigned, revoked=self._revoked)
        self._task = asyncio.create_task(self._read())

    async def until(self, ready: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Returns when `ready()`; looked at after every event and record."""
        async with asyncio.timeout(timeout_s):
            while not ready():
                self._changed.clear()
                await self._changed.wait()
                if self._task is not None and self._task.done():
                    self._task.result()

    async def leave(self) -> None:
        """Stops reading and closes the reader."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.reader.close()

    def _assigned(self, positions: Mapping[TopicPartition, Offset]) -> None:
        self.events.append(("assigned", dict(positions)))
        self.held = dict(positions)
        self._changed.set()

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("revoked", sorted(partitions)))
        self.held = {}
        self._changed.set()

    async def _read(self) -> None:
        try:
            while True:
                with contextlib.suppress(RetriableError):  # the broker is away
                    self._take(await self.reader.read())
                self._changed.set()
        finally:
            self._changed.set()

    def _take(self, items: Sequence[Run | EndReached]) -> None:
        for item in items:
            if isinstance(item, Run):
                assert item.data in self.held, item
                self.runs.append(item)
                self.records += records_of([item])
