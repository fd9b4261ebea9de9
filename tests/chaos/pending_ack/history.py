"""What pending-ack-log and its owners' answers say, read by a witness while everything runs.

*Source*: rules A4, B2, C0, C1, G. The witness begins as an owner does, from the last base,
and never writes. Where a trim overtakes it, it begins again so, and leaves what lay in the gap
unjudged.

*Invariants*: an answer to a logged request is what the effective log says at one of the places
(offset, batch index) where the request lies, so no zombie has answered; no offset is acknowledged
by two transactions that were settled as committed; no transaction is settled in two ways.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.readers import LogReader, Record
from stilltide.pipeline.core.buffered_log.owner import EffectiveLog
from stilltide.pipeline.core.pending_ack.machine import AckReply, PendingAckStore
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.schemas.framing import decode_value
from stilltide.schemas.headers import entry_stamp
from stilltide.schemas.pending_ack import codec as pending_ack
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    Acknowledge,
    AckRequest,
    Acks,
    Settle,
)
from stilltide.schemas.service.envelopes import Done, Refused, Request, client_key
from stilltide.schemas.topics import PENDING_ACK_LOG, TXN_RESPONSES
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId

AWAY_S = 60.0

Asked = tuple[bytes, int, int]
"""Client, partition of ack-requests, number."""


class _Log:
    """One partition of the log, as its next owner would understand it.

    Args:
        partition: of pending-ack-log.
        start: of the log.
        replay_end: where the witness begins to judge.

    Attributes:
        earlier: client and number of requests before; their answers may come late.
    """

    def __init__(self, partition: int, start: Offset, replay_end: EndOffset) -> None:
        self.store = PendingAckStore(partition, start)
        self._effective = EffectiveLog(start)
        self._replay_end = replay_end
        self._judging = False
        self.earlier: set[tuple[bytes, int]] = set()

    def read(self, entry: Record) -> list[AckReply]:
        """The requests of an entry that is effective, in order, with the right answers."""
        if not self._judging and entry.offset >= self._replay_end:
            self.store.serve(entry.offset, 0)
            self._judging = True
        stamp = entry_stamp(entry.headers)
        if stamp is None:
            self._effective.fence_read(entry.offset)
            return []
        if not self._effective.entry_read(entry.offset, stamp):
            return []
        records = [pending_ack.decode(record) for record in decode_value(entry.value)]
        if not self._judging:
            self.earlier |= {
                (client_key(it.body.client_id), it.body.number)
                for it in records
                if isinstance(it.body, Request)
            }
        effects = self.store.applied(entry.offset, records, own=True, now_ms=0)
        return [effect for effect in effects if isinstance(effect, AckReply)]


class AckHistory:
    """Reads from `start` to `check`, which is for when everything has come to rest."""

    def __init__(self, connector: KafkaConnector) -> None:
        self._connector = connector
        self._logs: dict[int, _Log] = {}
        self._right: defaultdict[Asked, list[AckAnswer]] = defaultdict(list)
        self._answers: list[Record] = []
        self._granted: defaultdict[tuple[SubscriptionId, int], set[TxnId]] = defaultdict(set)
        self._settled: defaultdict[TxnId, set[bool]] = defaultdict(set)
        self._positions: dict[TopicPartition, Offset] = {}
        self._overtaken: set[int] = set()
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads the logs as they are, then follows them and the answers."""
        logs, answers = await self._partitions()
        admin = self._connector.admin()
        starts, ends = await admin.start_offsets(logs), await admin.end_offsets([*logs, *answers])
        await admin.close()
        self._logs = {it.partition: _Log(it.partition, starts[it], ends[it]) for it in logs}
        positions = {it: starts[it] for it in logs} | {it: Offset(ends[it]) for it in answers}
        self._positions.update(positions)
        reader = self._connector.reader("chaos-witness", committed=False)
        await reader.assign(positions)
        self._reading = asyncio.create_task(self._read(reader))

    async def close(self) -> None:
        """Reads no further."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def check(self) -> None:
        """Reads to the present ends; asserts that all of it holds."""
        assert self._reading is not None
        logs, answers = await self._partitions()
        admin = self._connector.admin()
        ends = await admin.end_offsets([*logs, *answers])
        await admin.close()
        while any(self._positions[it] < end for it, end in ends.items()):
            assert not self._reading.done(), self._reading.exception()
            await asyncio.wait([self._reading], timeout=0.1)
        judged = sum(self._judge(answer) for answer in self._answers)
        assert judged, "no answer was judged: the scenario proves nothing"
        for txn, outcomes in self._settled.items():
            assert len(outcomes) == 1, f"{txn} was settled in two ways"
        for (subscription, offset), txns in self._granted.items():
            committed = [txn for txn in txns if self._settled.get(txn) == {True}]
            assert len(committed) <= 1, f"{subscription} {offset} is acknowledged by {committed}"

    async def _partitions(self) -> list[list[TopicPartition]]:
        admin = self._connector.admin()
        described = await admin.describe_topics([PENDING_ACK_LOG, TXN_RESPONSES])
        await admin.close()
        return [
            [TopicPartition(name, it) for it in range(described[name].partition_count)]
            for name in (PENDING_ACK_LOG, TXN_RESPONSES)
        ]

    async def _read(self, reader: LogReader) -> None:
        admin = self._connector.admin()
        outages = OutageGuard(admin, timeout_s=AWAY_S)
        try:
            while True:
                try:
                    items = await outages.read(reader.read)
                except OffsetOutOfRangeError:
                    await outages.call(self._begin_again, admin)
                    await reader.assign(self._positions)
                    continue
                for item in items:
                    if isinstance(item, Record):
                        self._record_read(item)
        finally:
            await reader.close()
            await admin.close()

    async def _begin_again(self, admin: LogAdmin) -> None:
        """Replays the logs that were trimmed before they were read."""
        logs = [it for it in self._positions if it.topic == PENDING_ACK_LOG]
        starts, ends = await admin.start_offsets(logs), await admin.end_offsets(logs)
        for log in logs:
            if self._positions[log] < starts[log]:
                self._positions[log] = starts[log]
                self._logs[log.partition] = _Log(log.partition, starts[log], ends[log])
                self._overtaken.add(log.partition)

    def _record_read(self, record: Record) -> None:
        data = TopicPartition(record.topic, record.partition)
        self._positions[data] = Offset(record.offset + 1)
        if data.topic == TXN_RESPONSES:
            self._answers.append(record)
            return
        for request, answer in (
            (it.request, it.answer) for it in self._logs[data.partition].read(record)
        ):
            key = client_key(request.client_id)
            self._right[key, data.partition, request.number].append(answer)
            self._note(request, answer)

    def _note(self, request: AckRequest, answer: AckAnswer) -> None:
        subscription, ask = request.body
        match ask:
            case Settle(txn, committed):
                self._settled[txn].add(committed)
            case Acknowledge(txn, _, offsets) if answer == Done() and subscription:
                for offset in offsets:
                    self._granted[subscription, offset].add(txn)
            case _:
                pass

    def _judge(self, answers: Record) -> int:
        """How many answers of a value were right; the value may be of a coordinator."""
        clients = {client for client, _, _ in self._right}
        if answers.key not in clients:
            return 0
        count = 0
        for data in decode_value(answers.value):
            number, partition, answer = pending_ack.decode_response(data)
            places = self._right.get((answers.key, partition, number), ())
            earlier = (answers.key, number) in self._logs[partition].earlier
            unseen = earlier or partition in self._overtaken
            count += judged(answer, places, unseen=unseen)
        return count


def judged(answer: AckAnswer, places: Sequence[AckAnswer], *, unseen: bool) -> bool:
    """Whether an answer is known to be right; False where it cannot be known.

    A request may lie in the log twice, with different answers: its transaction has ended before a
    next owner read it again. The answer to the first place may then be all that is left of it.

    Args:
        answer: as the owner has given it.
        places: right answers to the same request, one for each place where the witness read it.
        unseen: whether it may lie where the witness has not read.

    Raises:
        AssertionError: nobody who owned the log can have given it.
    """
    if answer in places:
        return True
    # Neither questions nor claims that the group does not confirm are logged.
    asked = isinstance(answer, Acks | Refused) and not places
    assert unseen or asked, f"{answer} to a request that the log answers so: {places}"
    return False
