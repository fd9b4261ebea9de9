"""Repairs a log with a damaged effective entry: a fence, a base of the state without it, a trim.

*Source*: docs/protocols B1, B2, B10, C8.
*Invariants*: the base holds every effective entry that decodes, by the machine that serves the log.
The log is trimmed only after the entry to which it is trimmed, and the base, were read back behind
the repair's own fence, with no other fence between. Whatever fails before leaves the log as it was.

Refuses: entries of a later version, and logs of which a base cannot be found.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from stilltide.connectors.errors import FencedError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Fetching, Record
from stilltide.connectors.ports.writers import LogWriter, append
from stilltide.pipeline.core.buffered_log.owner import EffectiveLog
from stilltide.pipeline.core.coordinator.base import state_of
from stilltide.pipeline.core.coordinator.machine import Coordinator
from stilltide.pipeline.core.pending_ack.machine import PendingAckStore
from stilltide.pipeline.drivers.buffered_log.owned_log import LogCodec
from stilltide.pipeline.drivers.coordinator.owner import CODEC as TXN_LOG_CODEC
from stilltide.pipeline.drivers.pending_ack.owner import CODEC as PENDING_ACK_CODEC
from stilltide.pipeline.drivers.repair.judging import Damage, Repair
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.shared.named_partitions import missing_topic
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.coordinator import txn_log
from stilltide.schemas.errors import DecodeError, UnknownVersionError
from stilltide.schemas.framing import decode_value
from stilltide.schemas.headers import EntryStamp, entry_stamp
from stilltide.schemas.log_frames import Base, Fence, Noop, pieces
from stilltide.schemas.pending_ack import codec as pending_ack
from stilltide.schemas.topics import PENDING_ACK_LOG, TXN_LOG
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

SKIPPED = (
    "what the entry held. No owner could read it, so no client was answered by it: requests in it "
    "are repeated or time out. If it was changed after it had been read, a transaction that it "
    "committed is open again, and aborts at its time-out"
)


class _Machine(Protocol):
    """The machine of an owner, as far as a repair needs it."""

    def applied(
        self, offset: Offset, records: Sequence[Any], *, own: bool, now_ms: int
    ) -> Sequence[Any]: ...

    def serve(self, epoch: Offset, now_ms: int) -> Sequence[Any]: ...


class _Kind(NamedTuple):
    """How the state of one kind of log is made and encoded."""

    codec: LogCodec
    machine: Callable[[int, Offset], _Machine]
    state: Callable[[Any], Iterable[bytes]]


KINDS = {
    TXN_LOG: _Kind(
        TXN_LOG_CODEC,
        Coordinator,
        lambda it: txn_log.encode_state(state_of(it.state)),
    ),
    PENDING_ACK_LOG: _Kind(
        PENDING_ACK_CODEC,
        PendingAckStore,
        lambda it: pending_ack.encode_state(it.state.base()),
    ),
}
"""The logs that can be repaired, by topic."""


class _Replay:
    """Reads a log up to an offset as an owner does, and passes over damaged entries."""

    def __init__(self, log: TopicPartition, start: Offset) -> None:
        kind = KINDS[log.topic]
        self.damage: list[Damage] = []
        self.machine = kind.machine(log.partition, start)
        self.fences: list[Offset] = []
        self.effective: set[Offset] = set()
        self._codec = kind.codec
        self._log = EffectiveLog(start)

    def entry_read(self, record: Record, log_start: Offset, now_ms: int) -> None:
        """Takes the next entry."""
        if record.offset > self._log.next_offset:
            self._log.gap_read(record.offset, log_start)
        stamp, nonce, records, error = self._parsed(record)
        if stamp is None and nonce is None:
            self._log.foreign_read(record.offset)
        elif stamp is None:
            self._log.fence_read(record.offset)
            self.fences.append(record.offset)
        elif self._log.entry_read(record.offset, stamp):
            self.effective.add(record.offset)
            self._effective(record, records, error, now_ms)

    def _parsed(
        self, record: Record
    ) -> tuple[EntryStamp | None, bytes | None, list[bytes], DecodeError | None]:
        records: list[bytes] = []
        failed: DecodeError | None = None
        try:
            records = decode_value(record.value)
        except DecodeError as error:
            failed = error
        try:
            stamp = entry_stamp(record.headers)
            nonce = self._codec.nonce_of(records[0]) if stamp is None and records else None
        except DecodeError:
            return None, None, records, failed
        return stamp, nonce, records, failed

    def _effective(
        self, record: Record, records: list[bytes], error: DecodeError | None, now_ms: int
    ) -> None:
        try:
            if error is not None:
                raise error
            decoded = [self._codec.decode(data) for data in records]
        except DecodeError as why:
            remedy = Repair("skip the entry: write a base without it, and trim the log", SKIPPED)
            if isinstance(why, UnknownVersionError):
                remedy = Repair("", "a newer version wrote the entry: upgrade the workers")
            self.damage.append(Damage(record, why.primary, remedy))
            return
        self.machine.applied(record.offset, decoded, own=False, now_ms=now_ms)


async def find_damage(
    connector: Connector, admin: LogAdmin, log: TopicPartition, now_ms: int
) -> list[Damage]:
    """The damaged effective entries of a log; nothing is written.

    Raises:
        LogTrimmedError: no base is in a trimmed log; DecodeError: its base is damaged inside.
        ConnectorError: the log cannot be read.
    """
    return (await _replayed(connector, admin, log, now_ms)).damage


async def repair_log(
    connector: Connector, admin: LogAdmin, log: TopicPartition, now_ms: int
) -> list[Damage]:
    """Skips the damaged effective entries of a log; returns them.

    Raises:
        FencedError: an owner has begun meanwhile; nothing was repaired, call again.
        RefusedError: a damaged entry cannot be skipped.
        LogTrimmedError, DecodeError, ConnectorError: as `find_damage`.
    """
    kind = KINDS[log.topic]
    async with closing(connector.writer("repair")) as writer:
        nonce = connector.chance.token(16)
        fence = await _appended(writer, log, kind.codec.encode(Fence(nonce), 0), None)
        replay = await _replayed(connector, admin, log, now_ms, until=fence)
        if not replay.damage:
            return []
        for damage in replay.damage:
            if not damage.repairable:
                raise RefusedError("an entry cannot be skipped", detail=damage.remedy.loses).at(
                    *damage.place, damage.record.offset
                )
        replay.machine.serve(fence, now_ms)  # raises if the state is not whole
        target, offsets = await _write_base(writer, kind, log, fence, replay.machine)
        after = await _replayed(connector, admin, log, now_ms)
        if after.fences[-1] != fence or not after.effective.issuperset([target, *offsets]):
            raise FencedError(
                "an owner has begun during the repair, which has changed nothing",
                hint="run the command again",
                data=log,
            )
        await admin.delete_records({log: target})
        return replay.damage


async def _appended(
    writer: LogWriter, log: TopicPartition, value: bytes, headers: list[tuple[str, bytes]] | None
) -> Offset:
    offset = await append(writer, log, value, headers=headers)
    if offset < 0:
        raise RetriableError("the record was written, at an offset that is not known")
    return Offset(offset)


async def _write_base(
    writer: LogWriter, kind: _Kind, log: TopicPartition, fence: Offset, machine: _Machine
) -> tuple[Offset, list[Offset]]:
    """Writes the entry to which the log is trimmed, and the base; returns their offsets."""

    async def entry(body: Base | Noop, serial: int) -> Offset:
        headers = EntryStamp(fence, serial).to_headers()
        return await _appended(writer, log, kind.codec.encode(body, 0), headers)

    target = await entry(Noop(), 1)
    state = b"".join(kind.state(machine))
    made = pieces(EndOffset(target), state)
    return target, [await entry(piece, serial) for serial, piece in enumerate(made, 2)]


async def _replayed(
    connector: Connector,
    admin: LogAdmin,
    log: TopicPartition,
    now_ms: int,
    *,
    until: Offset | None = None,
) -> _Replay:
    starts, ends = await admin.start_offsets([log]), await admin.end_offsets([log])
    if log not in starts or log not in ends:
        raise missing_topic(log.topic)
    replay = _Replay(log, starts[log])
    end = ends[log] if until is None else EndOffset(until)
    reader = connector.reader("repair", committed=False, fetching=Fetching.SCANNING)
    async with closing(reader):
        async for records in scan(reader, [OffsetRange(log, starts[log], end)]):
            for record in records:
                replay.entry_read(record, starts[log], now_ms)
    return replay
