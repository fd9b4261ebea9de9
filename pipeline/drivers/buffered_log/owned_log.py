"""Owns one log partition: fence, replay, append, read back.

*Source*: docs/protocols A, B. An append is reported as written only after its entry was read back
effective (B3); what a zombie appends is never reported. Foreign entries (B6) and the control
records of native transactions (B7) are passed over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from stilltide.connectors.errors import (
    ConnectorError,
    FatalError,
    FencedError,
    OffsetOutOfRangeError,
    RetriableError,
)
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import LogReader
from stilltide.connectors.ports.records import EndReached, Record
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from stilltide.pipeline.core.buffered_log.effective import LogGapError
from stilltide.pipeline.core.buffered_log.owner import (
    AppendNoop,
    Apply,
    EntryWritten,
    Fenced,
    Foreign,
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

    Attributes:
        fence: makes the bytes of a fence record with this nonce.
        noop: makes the bytes of a no-op record.
        decode: reads a record from its bytes; raises `DecodeError`.
        nonce_of: reads the nonce of a fence record; raises `DecodeError` for any other record.
    """

    fence: Callable[[bytes], bytes]
    noop: Callable[[], bytes]
    decode: Callable[[bytes], Any]
    nonce_of: Callable[[bytes], bytes]


def log_codec(
    encode: Callable[[Fence | Noop, int], bytes], decode: Callable[[bytes], Any]
) -> LogCodec:
    """The codec of a log, from the functions for its records.

    Args:
        encode: makes the bytes of a record from its body and its time in milliseconds.
        decode: reads a record; the `body` of a fence record is a `Fence`.
    """

    def nonce_of(record: bytes) -> bytes:
        body = decode(record).body
        if not isinstance(body, Fence):
            raise DecodeError(
                f"an entry without epoch and serial that is no fence, but {type(body).__name__}",
                hint="something else writes to this topic",
            )
        return body.nonce

    # No time-out depends on the time of a fence or no-op, so they carry no time.
    return LogCodec(
        fence=lambda nonce: encode(Fence(nonce), 0),
        noop=lambda: encode(Noop(), 0),
        decode=decode,
        nonce_of=nonce_of,
    )


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
        submit: hands an entry to the buffered-writer agent, which awaits `write_entry`; entries
            must arrive there in order.
        replaying: called with the log start before a replay, and again if the log is trimmed past
            the replay's position, which makes the replay restart.
        applied: called with offset and decoded records of each effective entry in log order, and
            whether this owner wrote them; also during a replay. Without an offset: the records of
            an entry of this owner that will never be effective (B5).
        serving: called once, at the end of the replay.
        wrote: called with each entry given to the producer, and the size of its value in bytes.
        foreign: called with each foreign entry (B6), again in each replay.
    """

    def __init__(
        self,
        connector: Connector,
        partition: TopicPartition,
        codec: LogCodec,
        limits: BatchLimits,
        *,
        writer: LogWriter,
        submit: Callable[["OwnedLog", WriteEntry], None],
        applied: Callable[[Offset | None, Sequence[Any], bool], None],
        replaying: Callable[[Offset], None] = lambda _: None,
        serving: Callable[[], None],
        wrote: Callable[[WriteEntry, int], None] = lambda _entry, _size_bytes: None,
        foreign: Callable[[Record], None] = lambda _record: None,
    ) -> None:
        self.partition = partition
        self._connector = connector
        self._codec = codec
        self._writer = writer
        self._submit = submit
        self._applied = applied
        self._replaying = replaying
        self._serving = serving
        self._wrote = wrote
        self._foreign = foreign
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
                topic=self.partition.topic,
                partition=self.partition.partition,
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
                self._wrote(entry, len(value))
                return

    def _entry_ended(
        self, owner: LogOwner, entry: WriteEntry, error: ConnectorError | None
    ) -> None:
        """The producer has reported an entry; the writer counts and tells refusals (C17)."""
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
        start = await outages.call(lambda: self._start_offset(admin))
        await reader.assign({self.partition: start})
        # A repeated try has a new nonce: a fence whose delivery report was lost may be in the log.
        nonce, fence_offset = await outages.call(self._append_fence)

        async def read() -> Sequence[Record | EndReached]:
            return await outages.call(reader.read, may_rest=True)

        async def log_start() -> Offset:
            return await outages.call(lambda: self._start_offset(admin))

        while True:
            self._owner = LogOwner(nonce, start)
            self._replaying(start)
            try:
                await self._follow(self._owner, read, log_start)
            except (LogGapError, OffsetOutOfRangeError) as error:
                overtaken_at = start
                start = await log_start()
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
                topic=self.partition.topic,
                partition=self.partition.partition,
            )
        return starts[self.partition]

    async def _append_fence(self) -> tuple[bytes, int]:
        """Writes a fence; returns its nonce, and its offset or -1."""
        nonce = self._connector.chance.token(16)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def delivered(error: ConnectorError | None, offset: int) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(offset)
            else:
                done.set_exception(error)

        self._writer.append(self.partition, self._codec.fence(nonce), delivered)
        return nonce, await done

    async def _follow(
        self,
        owner: LogOwner,
        read: Callable[[], Awaitable[Sequence[Record | EndReached]]],
        log_start: Callable[[], Awaitable[Offset]],
    ) -> None:
        while True:
            asked: Offset | None = None  # asked after the read, so one answer is for all its gaps
            with placed_each(await read()) as each:
                for item in each:
                    if not isinstance(item, Record):
                        continue
                    if item.offset > owner.next_offset:
                        asked = await log_start() if asked is None else asked
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
                    self._applied(entry.offset, self._decoded(records, serial), serial is not None)
                case EntryWritten(serial, offset):
                    self._report(serial, offset)
                case Serve():
                    self._serving()
                case AppendNoop():
                    self.append(self._codec.noop())
                case Foreign():
                    assert entry is not None
                    self._foreign(entry)
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
            self._submit(self, entry)

    def _report(self, serial: int, offset: Offset | None) -> None:
        unread = self._unread.pop(serial)
        appended = unread.appended
        if offset is None:
            self._applied(None, unread.decoded, True)
            error = RetriableError(
                "the record was not written",
                detail="its entry failed and a later one has been read back (B5)",
                topic=self.partition.topic,
                partition=self.partition.partition,
            )
            for one in appended:
                if one is not None:
                    one(error)
            return
        for index, one in enumerate(appended):
            if one is not None:
                one(BatchPosition(self.partition.partition, offset, len(appended), index))

    def _fenced(self, detail: str) -> FencedError:
        return FencedError(
            "another owner has taken the log over",
            detail=detail,
            topic=self.partition.topic,
            partition=self.partition.partition,
        )

    def _fail_all(self) -> None:
        """Fails every record that was not read back, once; later appends raise (A1, B4)."""
        if self._ended is None:
            self._ended = self._fenced("this ownership has ended")
        if self._owner is not None:
            self._owner.replaced()
        self._batcher.close()
        unread, self._unread = self._unread, {}
        for entry, error in zip(unread.values(), repeat(self._ended)):
            for one in entry.appended:
                if one is not None:
                    one(error)


def _records_of(entry: Record) -> tuple[list[bytes], DecodeError | None]:
    """The records of an entry, or no records and the reason."""
    try:
        return decode_value(entry.value), None
    except DecodeError as error:
        return [], error
