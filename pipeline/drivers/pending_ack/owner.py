"""Runs one pending-ack store: takes requests, and writes log entries and answers.

*Source*: docs/protocols G1, G4, C10, C15. What lies beyond a log is refused here (G4).
*Invariants*: outcomes of transactions, and questions about all subscriptions, are taken from the
topic of operators and workers alone; a member is attached only if the group's coordinator knows it
(Kafka lets only those join a group who have the right to); of that and of the ends of logs one
question at a time is asked, for all requests meanwhile.
"""

import asyncio
from collections.abc import Callable

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import GroupAdmin
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.buffered_log.bases import Trim
from stilltide.pipeline.core.pending_ack.machine import (
    AckReply,
    PendingAckEffect,
    PendingAckStore,
    WriteAckBase,
    wrong_values,
)
from stilltide.pipeline.core.pending_ack.subscription import SubscriptionAcks
from stilltide.pipeline.drivers.buffered_log.owned_log import LogCodec
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.service.own.owner import OwnerDeps, Received, ServiceOwner
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.worker import OwnerMetrics
from stilltide.schemas import topics
from stilltide.schemas.framing import decode_value, encode_request_record
from stilltide.schemas.pending_ack import codec as pending_ack
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    Acknowledge,
    AckQuestion,
    AckRequest,
    Attach,
    CursorMoved,
    DescribeAcks,
    DescribeStore,
    PendingAckRecord,
    Settle,
    StoreStats,
    SubscriptionStats,
)
from stilltide.schemas.pending_ack.codec import encode_state
from stilltide.schemas.service.envelopes import RefusalCode, Refused, Response, Unreadable
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition

SUBSCRIPTIONS_SHOWN_MAX = 1000
"""Subscriptions that an answer describes; `subscriptions_omitted` counts the others."""


class PendingAckOwner(ServiceOwner[PendingAckStore, AckQuestion]):
    """One pending-ack store, for as long as its partition is assigned to this worker.

    Args:
        partition: number of the partition of pending-ack-log and ack-requests.
        deps: dependencies shared with other owners.
        groups: asks the groups' coordinators for members; shared with other stores.
        limits: thresholds of the buffered writer.
        metrics: metrics of this store.
    """

    def __init__(
        self,
        partition: int,
        deps: OwnerDeps,
        *,
        groups: GroupAdmin,
        limits: BatchLimits,
        metrics: OwnerMetrics,
    ) -> None:
        self.partition = partition
        self._memberships = Memberships(groups)
        self._ends = LogEnds(deps.admin)
        log_partition = TopicPartition(topics.PENDING_ACK_LOG, partition)
        super().__init__(log_partition, CODEC, deps, limits=limits, metrics=metrics)

    def stats(self) -> StoreStats:
        """The store's figures without those of single subscriptions, only while it serves.

        Costs a walk over subscriptions and pending acknowledgements: 3 ms at 10 000 of both.
        """
        assert self._log is not None
        machine = self._machine
        subscriptions = machine.state.subscriptions.values()
        liveness = machine.bases.liveness
        buffered_records, buffered_bytes = self._log.buffered
        return StoreStats(
            log=self._log_figures(),
            subscription_count=len(subscriptions),
            transaction_count=len({txn for acks in subscriptions for txn in acks.pending}),
            pending_individual=sum(acks.individual_count for acks in subscriptions),
            pending_cumulative=sum(acks.cumulative_offset is not None for acks in subscriptions),
            buffered_records=buffered_records,
            buffered_bytes=buffered_bytes,
            base_as_of=machine.base_as_of,
            log_records=liveness.live_count + liveness.dead_count,
            subscriptions=(),
            subscriptions_omitted=0,
        )

    def refuse(self, value: bytes | None, end: OwnerEnd) -> None:
        """Tells the clients that this store has ended (B8); their requests come again.

        Raises:
            DecodeError: the value holds no requests.
        """
        received = [self._decode_request(data) for data in decode_value(value)]
        self._deps.replies.tell(received, end.notice(self.partition))

    def _new_machine(self, log_start: Offset) -> PendingAckStore:
        return PendingAckStore(self.partition, log_start)

    _decode_request = staticmethod(pending_ack.decode_request)

    def _take(self, received: Received[AckQuestion]) -> None:
        take = self._operator_asked if received.operator else self._client_asked
        for data, request in received.requests:
            ask = request.body.ask
            if isinstance(ask, Unreadable):
                self._refuse(request, ask.refusal)
            else:
                take(data, request)

    def _client_asked(self, data: bytes, request: AckRequest) -> None:
        """Takes a request from a topic that applications may write."""
        body = request.body.ask
        wrong = wrong_values(request)
        if wrong:
            self._refuse(request, Refused(wrong, RefusalCode.MALFORMED))
        elif isinstance(body, Attach) and not body.reset:
            self._claimed(request, body)
        elif isinstance(body, DescribeAcks):
            self._answer_after_noop(request, lambda: self._machine.asked(request, operator=False))
        elif isinstance(body, Acknowledge):
            self._log_request(data, request)
        elif isinstance(body, CursorMoved):
            self._cursor_moved(data, request, body)
        else:
            reason = f"{type(body).__name__} is taken from {topics.OPERATOR_ACK_REQUESTS} alone"
            self._refuse(request, Refused(reason, RefusalCode.OPERATORS_ONLY))

    def _operator_asked(self, data: bytes, request: AckRequest) -> None:
        """Takes a request from the topic that only operators and workers may write (C15)."""
        body = request.body.ask
        if isinstance(body, DescribeAcks):
            self._answer_after_noop(request, lambda: self._machine.asked(request, operator=True))
        elif isinstance(body, DescribeStore):
            self._answer_after_noop(
                request, lambda: _with_subscriptions(self.stats(), self._machine, body)
            )
        elif isinstance(body, Settle):
            self._settled(data, request, body)
        elif isinstance(body, Attach) and body.reset:
            self._log_request(data, request)
        else:
            reason = f"{type(body).__name__} is taken from {topics.ACK_REQUESTS} alone"
            self._refuse(request, Refused(reason, RefusalCode.UNSUPPORTED))

    def _claimed(self, request: AckRequest, claim: Attach) -> None:
        """Attaches a member that the group has (G Claims); clients repeat a lost claim.

        The claim is logged with the end of the log; one that lies beyond is refused (G4).
        """
        machine, subscription = self._machine, request.body.subscription
        assert subscription is not None

        def checked(refused: Refused | None) -> None:
            if refused is None:
                self._ends.ask(subscription.data, bounded)
            elif self._still_serves(machine):
                self._refuse(request, refused)

        def bounded(end: EndOffset | None) -> None:
            if not self._still_serves(machine):
                return
            if end is not None and claim.cursor > end:
                self._refuse(request, _beyond(claim.cursor, end))
                return
            self._log_changed(request, claim._replace(log_end=end))

        self._memberships.check(subscription.group, claim.group_member, checked)

    def _cursor_moved(self, data: bytes, request: AckRequest, moved: CursorMoved) -> None:
        """Takes a cursor that the log holds (G4)."""
        machine, subscription = self._machine, request.body.subscription
        assert subscription is not None
        highest = max([moved.cursor, *(it.end for it in moved.acknowledged[-1:])])

        def bounded(end: EndOffset | None) -> None:
            if not self._still_serves(machine):
                return
            if end is not None and highest > end:
                self._refuse(request, _beyond(highest, end))
            else:
                self._log_request(data, request)

        if self._ends.holds(subscription.data, highest):
            self._log_request(data, request)
        else:
            self._ends.ask(subscription.data, bounded)

    def _settled(self, data: bytes, request: AckRequest, settle: Settle) -> None:
        """Settles; a commit acknowledges nothing beyond the end of the log (G4)."""
        machine, subscription = self._machine, request.body.subscription
        assert subscription is not None
        highest = machine.state.highest_pending(subscription, settle.txn)

        def bounded(end: EndOffset | None) -> None:
            if not self._still_serves(machine):
                return
            if end is None or highest < end:
                self._log_request(data, request)
                return
            self._log_changed(request, settle._replace(log_end=end))

        if not settle.committed or highest < 0 or self._ends.holds(subscription.data, highest):
            self._log_request(data, request)
        else:
            self._ends.ask(subscription.data, bounded)

    def _still_serves(self, machine: PendingAckStore) -> bool:
        """Whether the ownership of this machine goes on."""
        return self._machine is machine and self.serving

    def _log_request(self, data: bytes, request: AckRequest) -> None:
        at_ms = self._deps.clock.now_ms()
        self.append(encode_request_record(data, at_ms), decoded=PendingAckRecord(request, at_ms))

    def _log_changed(self, request: AckRequest, ask: Attach | Settle) -> None:
        logged = request._replace(body=request.body._replace(ask=ask))
        self._log_request(pending_ack.encode_request(logged), logged)

    def _refuse(self, request: AckRequest, refused: Refused) -> None:
        self._answer_after_noop(request, lambda: refused)

    def _answer_after_noop(self, request: AckRequest, answer: Callable[[], AckAnswer]) -> None:
        self._after_noop(lambda: self._reply(request, answer()), asker=request.client_id)

    def _carry_out(self, effect: PendingAckEffect) -> None:
        match effect:
            case AckReply(request, answer):
                self._reply(request, answer)
            case WriteAckBase(as_of, state):
                self._bases.write(as_of, encode_state(state))
            case Trim(offset):
                self._bases.trim(offset)

    def _reply(self, request: AckRequest, answer: AckAnswer) -> None:
        if not self._deps.replies.room(request.client_id):
            return  # before the bytes of a claim's answer are made
        response = Response(request.number, self.partition, answer)
        data = pending_ack.encode_response(response)
        self._respond(request.client_id, request.reply_partition, data)


def _beyond(offset: int, end: EndOffset) -> Refused:
    reason = f"offset {offset} lies beyond the end of the log, {end}"
    return Refused(reason, RefusalCode.MALFORMED)


def _with_subscriptions(
    figures: StoreStats, machine: PendingAckStore, asked: DescribeStore
) -> StoreStats:
    """The figures, and those of the subscriptions that `asked` names.

    Costs a walk over all subscriptions: 10 ms at 10 000, with the answer's bytes.
    """
    matching = [
        (subscription, acks)
        for subscription, acks in machine.state.subscriptions.items()
        if asked.topic in ("", subscription.data.topic) and asked.group in ("", subscription.group)
    ]
    matching.sort(key=lambda it: len(it[1].pending), reverse=True)
    shown = matching[:SUBSCRIPTIONS_SHOWN_MAX]
    return figures._replace(
        subscriptions=tuple(
            _subscription_stats(subscription, acks, has_served=subscription in machine.served)
            for subscription, acks in shown
        ),
        subscriptions_omitted=len(matching) - len(shown),
    )


def _subscription_stats(
    subscription: SubscriptionId, acks: SubscriptionAcks, *, has_served: bool
) -> SubscriptionStats:
    """The figures of one subscription."""
    return SubscriptionStats(
        subscription=subscription,
        attached=bool(acks.member),
        cursor=acks.cursor,
        committed=acks.committed,
        acknowledged_ranges=acks.acknowledged.range_count,
        pending_transactions=len(acks.pending),
        pending_individual=acks.individual_count,
        pending_cumulative_offset=acks.cumulative_offset,
        locked_offsets=acks.locked_count,
        has_served=has_served,
        client_key=acks.client_key,
        client_name=acks.client_name,
    )


CODEC = LogCodec(pending_ack.encode_own, pending_ack.decode)


log = get_logger(__name__)

Checked = Callable[[Refused | None], None]
"""Called with why the claim is refused; None: it is good."""


class Memberships:
    """Whether members are in their groups, as the coordinators of the groups say (C15)."""

    def __init__(self, groups: GroupAdmin) -> None:
        self._groups = groups
        self._asked: list[tuple[str, str, Checked]] = []
        self._asking: asyncio.Task[None] | None = None

    def check(self, group: str, member: str, checked: Checked) -> None:
        """Calls `checked` once; never if the coordinator is away, since clients repeat a claim."""
        if not member:
            reason = "the claim names no member of the group"
            checked(Refused(reason, RefusalCode.MALFORMED))
            return
        self._asked.append((group, member, checked))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="claims")

    async def _ask(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            by_group: dict[str, list[tuple[str, Checked]]] = {}
            for group, member, checked in asked:
                by_group.setdefault(group, []).append((member, checked))
            for group, claims in by_group.items():
                await self._ask_group(group, claims)

    async def _ask_group(self, group: str, claims: list[tuple[str, Checked]]) -> None:
        """One group at a time: a right that is missing for one must not stop the others."""
        refused: Refused | None = None
        members: set[str] = set()
        try:
            members = await self._groups.members(group)
        except RetriableError as error:
            log.warning("group_not_described", group=group, claims=len(claims), why=str(error))
            return
        except ConnectorError as error:
            log.warning("group_not_described", group=group, claims=len(claims), why=str(error))
            reason = f"the worker cannot describe group {group}: {error.primary}"
            refused = Refused(reason, RefusalCode.NOT_IN_GROUP)
        for member, checked in claims:
            if refused is not None or member in members:
                checked(refused)
            else:
                reason = f"group {group} has no member {member[:100]!r}"
                checked(Refused(reason, RefusalCode.NOT_IN_GROUP))


KNOWN_MAX = 10_000
"""Partitions of which an end is kept; at the limit all are forgotten."""

Answered = Callable[[EndOffset | None], None]
"""Called with the end of the partition's log; None: it is not known."""


class LogEnds:
    """The ends of logs, as of the last question.

    Args:
        admin: admin client of the cluster; the caller closes it.
    """

    def __init__(self, admin: LogAdmin) -> None:
        self._admin = admin
        self._known: dict[TopicPartition, EndOffset] = {}
        self._asked: list[tuple[TopicPartition, Answered]] = []
        self._asking: asyncio.Task[None] | None = None

    def holds(self, data: TopicPartition, offset: int) -> bool:
        """Whether the log is known to hold an offset, or to have held it."""
        return offset < self._known.get(data, 0)

    def ask(self, data: TopicPartition, answered: Answered) -> None:
        """Calls `answered` once; never if the cluster is away, since requests are repeated."""
        self._asked.append((data, answered))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="log-ends")

    async def _ask(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            try:
                ends = await self._admin.end_offsets(sorted({data for data, _ in asked}))
            except RetriableError as error:
                log.warning("log_ends_not_read", partitions=len(asked), why=str(error))
                continue
            except ConnectorError as error:
                # A store that settled nothing would keep transactions open for ever.
                log.warning("log_ends_not_read", partitions=len(asked), why=str(error))
                ends = dict[TopicPartition, EndOffset]()
            if len(self._known) + len(ends) > KNOWN_MAX:
                self._known.clear()
            self._known |= ends
            for data, answered in asked:
                answered(ends.get(data))
