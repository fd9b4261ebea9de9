"""Owns one log partition: fence, replay, append, read back.

*Source*: docs/protocols A1, A4, A5, A6, B1, B3, B4, B6, B7. An append is reported as written only
after its entry was read back effective (B3); what a zombie appends is never reported. Foreign
entries (B6) and the control records of native transactions (B7) are passed over.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

from stilltide.connectors.errors import (
    ConnectorError,
    FatalError,
    FencedError,
    OffsetOutOfRangeError,
    RetriableError,
)
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import LogReader, Record
from stilltide.connectors.ports.writers import LogWriter, append
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from stilltide.pipeline.core.buffered_log.owner import (
    AppendNoop,
    Apply,
    EntryWritten,
    Fenced,
    Foreign,
    LogGapError,
    LogOwner,
    OwnerEffect,
    OwnerState,
    Serve,
)
from stilltide.pipeline.drivers.buffered_log.batcher import Batcher
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import DecodeError, damaged_at, placed_each
from stilltide.schemas.framing import decode_value, encode_batch
from stilltide.schemas.headers import entry_stamp
from stilltide.schemas.log_frames import Fence, Noop
from stilltide.schemas.retry import REFUSED_ENTRY
from stilltide.schemas.values import BatchPosition, Offset, TopicPartition

log = get_logger(__name__)

Appended = Callable[[BatchPosition | ConnectorError], None]
"""Called once for each append, with the record's position or with the reason of its loss."""


@dataclass(frozen=True)
class LogCodec:
    """Makes and reads the records of a log.

    No time-out depends on the time of a fence or no-op, so they carry no time.

    Attributes:
        encode: makes the bytes of a record from its body and its time in milliseconds.
        decode: reads a record; raises `DecodeError`. The `body` of a fence record is a `Fence`.
    """

    encode: Callable[[Any, int], bytes]
    decode: Callable[[bytes], Any]

    def nonce_of(self, record: bytes) -> bytes:
        """The nonce of a fence record; raises `DecodeError` for any other record."""
        body = self.decode(record).body
        if not isinstance(body, Fence):
            raise DecodeError(
                f"an entry without epoch and serial that is no fence, but {type(body).__name__}",
                hint="something else writes to this topic",
            )
        return body.nonce


class LogListener(Protocol):
    """What an `OwnedLog` tells its owner."""

    def replaying(self, log_start: Offset) -> None:
        """A replay begins at the log start; again if a trim has overtaken the one before."""
        ...

    def applied(self, offset: Offset | None, records: Sequence[Any], *, own: bool) -> None:
        """The decoded records of each effective entry in log order, also during a replay.

        Without an offset: the records of an entry of this owner that will never be effective (B5).
        """
        ...

    def serve(self) -> None:
        """The replay has ended."""
        ...

    def wrote(self, entry: WriteEntry, size_bytes: int) -> None:
        """An entry was given to the producer; its value has `size_bytes`."""
        ...

    def foreign(self, entry: Record) -> None:
        """A foreign entry was read (B6), in each replay again."""
        ...


class EntryWriter(Protocol):
    """Writes entries, in the order in which they come, by `OwnedLog.write_entry`."""

    def submit(self, log: "OwnedLog", entry: WriteEntry) -> None:
        """Takes the next entry of a log; returns at once."""
        ...

    async def run(self) -> None:
        """Writes until cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class _Unread:
    """An entry that this owner has written and not yet read back: its records, raw and decoded."""

    records: Sequence[bytes]
    decoded: Sequence[Any]
    appended: Sequence[Appended | None]


class OwnedLog:
    """One ownership of one log, from its fence to its end.

    Args:
        connector: the cluster.
        partition: the log.
        codec: makes and reads the records of the log.
        limits: thresholds of the buffered writer.
        writer: appends entries; shared with other owners.
        entries: writes the entries.
        listener: told of what is read.
    """

    def __init__(
        self,
        connector: Connector,
        partition: TopicPartition,
        codec: LogCodec,
        limits: BatchLimits,
        *,
        writer: LogWriter,
        entries: EntryWriter,
        listener: LogListener,
    ) -> None:
        self.partition = partition
        self._connector = connector
        self._codec = codec
        self._writer = writer
        self._entries = entries
        self._listener = listener
        self._batcher = Batcher(limits, self._entry_made)
        self._owner: LogOwner | None = None
        self._open: list[Appended | None] = []  # of records that no entry holds yet
        self._open_decoded: list[Any] = []
        self._unread: dict[int, _Unread] = {}  # by serial
        self._ended: ConnectorError | None = None

    @property
    def epoch(self) -> Offset | None:
        """The fence's offset while this owner serves (B1)."""
        owner = self._owner
        return owner.epoch if owner is not None and owner.state is OwnerState.SERVING else None

    @property
    def in_flight(self) -> int:
        """Appended records that are neither read back nor lost."""
        return len(self._open) + sum(len(it.appended) for it in self._unread.values())

    @property
    def buffered(self) -> tuple[int, int]:
        """Records that no entry holds yet, and their bytes."""
        return self._batcher.buffered, self._batcher.buffered_bytes

    async def run(self) -> None:
        """Fences, replays, then serves until an error ends it; always raises.

        Raises:
            FencedError: another owner took over, or trimmed the log past this one (B3, B4).
            FatalError: the log cannot be read.
            DecodeError: an effective entry cannot be decoded; names topic, partition and offset.
        """
        reader = self._connector.reader(f"log-{self.partition.partition}", committed=False)
        admin = self._connector.admin()
        outages = OutageGuard(admin)
        try:
            await self._replay_and_follow(reader, admin, outages)
        except (LogGapError, OffsetOutOfRangeError) as error:
            raise FencedError(
                "a trim overtook the owner of the log",
                detail=str(error),
                data=self.partition,
            ) from error
        except DecodeError as error:
            if error.offset is not None:
                damaged_at(error, *self.partition, error.offset)
            raise
        finally:
            self._fail_all()
            await reader.close()
            await admin.close()

    def append(self, record: bytes, appended: Appended | None = None, decoded: Any = None) -> None:
        """Takes one serialised record; only between `serving` and the end of `run`.

        Args:
            record: bytes of the record.
            appended: called once, with the position of the record or the reason of its loss.
            decoded: the decoded record, from a caller that has it; `applied` gets this object
                when the entry is read back, so that the bytes are not decoded again.

        Raises:
            FencedError: this owner does not serve any more.
        """
        if self._ended is not None:
            raise self._ended
        self._open_decoded.append(self._codec.decode(record) if decoded is None else decoded)
        self._open.append(appended)
        self._batcher.append(record)

    def limits_changed(self, limits: BatchLimits) -> None:
        """Sets the thresholds for later entries."""
        self._batcher.limits_changed(limits)

    async def write_entry(self, entry: WriteEntry) -> None:
        """Gives one entry to the producer; waits only while the producer's queue is full."""
        owner = self._owner
        if self._ended is not None or owner is None or owner.state is not OwnerState.SERVING:
            return  # its records have been failed already
        records = entry.records
        value = records[0] if len(records) == 1 else encode_batch(records)
        headers = owner.stamp(entry.number).to_headers()

        def delivered(error: ConnectorError | None, _offset: int) -> None:
            if isinstance(error, FatalError):
                pause = asyncio.get_running_loop().call_later
                pause(REFUSED_ENTRY.wait_s(1), self._entry_ended, owner, entry, error)
            else:
                self._entry_ended(owner, entry, error)

        while True:
            try:
                self._writer.append(self.partition, value, delivered, headers=headers)
            except RetriableError:
                await self._writer.room()
            except FatalError as error:
                delivered(error, -1)
                return
            else:
                self._listener.wrote(entry, len(value))
                return

    def _entry_ended(
        self, owner: LogOwner, entry: WriteEntry, error: ConnectorError | None
    ) -> None:
        """The producer has reported an entry (A5); the writer counts and tells refusals (C17)."""
        if self._ended is not None:
            return
        if error is not None:
            tell = log.debug if isinstance(error, FatalError) else log.warning
            tell("entry_unknown", log=str(self.partition), serial=entry.number, why=str(error))
            self._run_effects(owner.write_failed(entry.number))
        self._batcher.write_ended()

    async def _replay_and_follow(
        self, reader: LogReader, admin: LogAdmin, outages: OutageGuard
    ) -> None:
        """Follows the log from its start; restarts a replay whose position was trimmed (B3)."""
        start = await outages.call(self._start_offset, admin)
        await reader.assign({self.partition: start})
        # A repeated try has a new nonce: a fence whose delivery report was lost may be in the log.
        nonce, fence_offset = await outages.call(self._append_fence)

        while True:
            self._owner = LogOwner(nonce, start)
            self._listener.replaying(start)
            try:
                await self._follow(self._owner, reader, admin, outages)
            except (LogGapError, OffsetOutOfRangeError) as error:
                overtaken_at = start
                start = await outages.call(self._start_offset, admin)
                # Another owner has trimmed past this fence: a replay would never find the fence.
                replaying = self._owner.state is OwnerState.REPLAYING
                if not replaying or not overtaken_at < start <= fence_offset:
                    raise
                log.warning("replay_begins_anew", log=str(self.partition), why=str(error))
                await reader.assign({self.partition: start})

    async def _start_offset(self, admin: LogAdmin) -> Offset:
        starts = await admin.start_offsets([self.partition])
        if self.partition not in starts:
            raise FatalError(
                "the log does not exist",
                hint="create the system topics first: start a worker, or `stilltide local up`",
                data=self.partition,
            )
        return starts[self.partition]

    async def _append_fence(self) -> tuple[bytes, int]:
        """Writes a fence; returns its nonce, and its offset or -1."""
        nonce = self._connector.chance.token(16)
        fence = self._codec.encode(Fence(nonce), 0)
        return nonce, await append(self._writer, self.partition, fence)

    async def _follow(
        self,
        owner: LogOwner,
        reader: LogReader,
        admin: LogAdmin,
        outages: OutageGuard,
    ) -> None:
        while True:
            asked: Offset | None = None  # asked after the read, so one answer is for all its gaps
            with placed_each(await outages.read(reader.read)) as each:
                for item in each:
                    if not isinstance(item, Record):
                        continue
                    if item.offset > owner.next_offset:
                        if asked is None:
                            asked = await outages.call(self._start_offset, admin)
                        owner.gap_read(item.offset, asked)
                    self._entry_read(owner, item)
            if self._ended is not None:
                raise self._ended

    def _entry_read(self, owner: LogOwner, record: Record) -> None:
        records, damage = _records_of(record)
        try:
            stamp = entry_stamp(record.headers)
            nonce = self._codec.nonce_of(records[0]) if stamp is None and records else None
        except DecodeError:
            stamp = nonce = None
        if stamp is not None:
            effects = owner.entry_read(record.offset, stamp, damage)
        elif nonce is not None:
            effects = owner.fence_read(record.offset, nonce)
        else:
            effects = owner.foreign_read(record.offset)
        self._run_effects(effects, record, records)

    def _run_effects(
        self,
        effects: Sequence[OwnerEffect],
        entry: Record | None = None,
        records: Sequence[bytes] = (),
    ) -> None:
        for effect in effects:
            match effect:
                case Apply(serial):
                    assert entry is not None
                    decoded = self._decoded(records, serial)
                    self._listener.applied(entry.offset, decoded, own=serial is not None)
                case EntryWritten(serial, offset):
                    self._report(serial, offset)
                case Serve():
                    self._listener.serve()
                case AppendNoop():
                    self.append(self._codec.encode(Noop(), 0))
                case Foreign():
                    assert entry is not None
                    self._listener.foreign(entry)
                case Fenced(offset):
                    self._ended = self._fenced(f"a fence at offset {offset}")

    def _decoded(self, records: Sequence[bytes], serial: int | None) -> Sequence[Any]:
        """The records of an entry; those of an entry with a `serial` were decoded at `append`."""
        if serial is None:
            return [self._codec.decode(record) for record in records]
        written = self._unread[serial]
        if records != written.records:
            # Another program wrote under this owner's stamp. The records decoded at `append` are
            # applied for equal bytes only, and any other bytes end the ownership.
            raise DecodeError(
                "an entry with this owner's epoch and serial, and other records than it wrote",
                hint="something else writes to this topic",
            )
        return written.decoded

    def _entry_made(self, entry: WriteEntry) -> None:
        count = len(entry.records)
        decoded, appended = self._open_decoded[:count], self._open[:count]
        del self._open_decoded[:count], self._open[:count]
        self._unread[entry.number] = _Unread(entry.records, decoded, appended)
        assert self._owner is not None
        if self._owner.state is OwnerState.SERVING:
            self._owner.entry_written(entry.number)
            self._entries.submit(self, entry)

    def _report(self, serial: int, offset: Offset | None) -> None:
        """A4: tells each caller the place of its record, an index in the order of appends."""
        unread = self._unread.pop(serial)
        appended = unread.appended
        if offset is None:
            self._listener.applied(None, unread.decoded, own=True)
            error = RetriableError(
                "the record was not written",
                detail="its entry failed and a later one has been read back (B5)",
                data=self.partition,
            )
            for report in appended:
                if report is not None:
                    report(error)
            return
        for index, report in enumerate(appended):
            if report is not None:
                report(BatchPosition(self.partition.partition, offset, len(appended), index))

    def _fenced(self, detail: str) -> FencedError:
        return FencedError(
            "another owner has taken the log over",
            detail=detail,
            data=self.partition,
        )

    def _fail_all(self) -> None:
        """Fails every record that was not read back, once; later appends raise (A1, A6, B4)."""
        if self._ended is None:
            self._ended = self._fenced("this ownership has ended")
        if self._owner is not None:
            self._owner.replaced()
        self._batcher.close()
        unread, self._unread = self._unread, {}
        for entry, error in zip(unread.values(), repeat(self._ended)):
            for report in entry.appended:
                if report is not None:
                    report(error)


def _records_of(entry: Record) -> tuple[list[bytes], DecodeError | None]:
    """The records of an entry, or no records and the reason."""
    try:
        return decode_value(entry.value), None
    except DecodeError as error:
        return [], error


class EntryQueue:
    """An `EntryWriter` without an agent."""

    def __init__(self) -> None:
        self._entries: asyncio.Queue[tuple[OwnedLog, WriteEntry]] = asyncio.Queue()

    def submit(self, log: OwnedLog, entry: WriteEntry) -> None:
        """Queues one entry."""
        self._entries.put_nowait((log, entry))

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            log, entry = await self._entries.get()
            await log.write_entry(entry)
