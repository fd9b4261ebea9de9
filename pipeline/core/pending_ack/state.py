"""A pending-ack store's state after the effective records of its log, in log order.

*Source*: docs/protocols G1, G3, C0, C8, C11, C15.
*Invariants*: the same records give the same state and the same answers in every process; an
illegal request changes nothing; a repeated request has no second effect, so no answer needs to be
remembered (C1b). An acknowledgement that is still pending when the coordinator's low watermark
passes its transaction was never registered with the coordinator, and is dropped as aborted. Only
the client that attached the member acknowledges. A sequence that was settled, or is below the low
watermark (C7), has ended for ever. At most `SETTLED_MAX` runs of settled sequences are held:
beyond, the oldest gap counts as ended too. Further acknowledgements of so old a transaction are
refused; none that was accepted is lost.
"""

from bisect import bisect_left, insort

from stilltide.pipeline.core.offset_index.intervals import RangeSet
from stilltide.pipeline.core.pending_ack.subscription import (
    SubscriptionAcks,
    forget_beyond,
    reset_by,
)
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    Acknowledge,
    AckRequest,
    Acks,
    AckState,
    Attach,
    BaseCoordinator,
    CursorMoved,
    Settle,
)
from stilltide.schemas.service.envelopes import (
    NO_CLIENT,
    Done,
    RefusalCode,
    Refused,
    client_key,
)
from stilltide.schemas.values import OFFSET_MAX, EndOffset, SubscriptionId, TxnId

SETTLED_MAX = 100_000


class CoordinatorView:
    """One coordinator's transactions, as a pending-ack store knows them."""

    def __init__(self, coordinator: int) -> None:
        self.low_watermark = 0
        self._coordinator = coordinator
        self._settled = RangeSet(ranges_max=SETTLED_MAX + 1)
        self._sequences: list[int] = []  # transactions with pending acknowledgements, ascending
        self._where: dict[int, set[SubscriptionId]] = {}

    @property
    def pending_count(self) -> int:
        """Number of transactions that may have pending acknowledgements."""
        return len(self._sequences)

    def has_ended(self, sequence: int) -> bool:
        """Whether a transaction's further acknowledgements are refused (G Settling)."""
        return sequence < self.low_watermark or sequence in self._settled

    def acknowledged(self, sequence: int, subscription: SubscriptionId) -> None:
        """Notes that a transaction may have pending acknowledgements in this group partition."""
        where = self._where.get(sequence)
        if where is None:
            where = self._where[sequence] = set()
            insort(self._sequences, sequence)
        where.add(subscription)

    def settled(self, sequence: int, subscription: SubscriptionId) -> None:
        """Nothing of an ended transaction is pending in this group partition (G Settling)."""
        if not self.has_ended(sequence):
            self._settled.add(sequence, sequence + 1)
            if self._settled.range_count > SETTLED_MAX:
                oldest, following, *_ = self._settled
                self._settled.add(oldest.first, following.end)
        where = self._where.get(sequence)
        if where is not None:
            where.discard(subscription)
            if not where:
                self._forget(sequence)

    def passed(self, low_watermark: int) -> list[tuple[TxnId, SubscriptionId]]:
        """Raises the low watermark; returns where transactions below it were never settled.

        A registered group partition is settled before the low watermark passes the transaction, so
        the returned ones were never registered.
        """
        if low_watermark <= self.low_watermark:
            return []
        self.low_watermark = low_watermark
        self._settled.trim_below(low_watermark)
        dropped: list[tuple[TxnId, SubscriptionId]] = []
        while self._sequences and self._sequences[0] < low_watermark:
            sequence = self._sequences[0]
            txn = TxnId(self._coordinator, sequence)
            dropped += [(txn, subscription) for subscription in sorted(self._where[sequence])]
            self._forget(sequence)
        return dropped

    def base(self) -> BaseCoordinator:
        """A copy of the state that does not follow from the group partitions' state (C8)."""
        settled = tuple((int(first), int(end)) for first, end in self._settled)
        return BaseCoordinator(self._coordinator, self.low_watermark, settled)

    @classmethod
    def from_base(cls, base: BaseCoordinator) -> "CoordinatorView":
        """The state that `base` copied; the caller adds pending ones by `acknowledged`."""
        self = cls(base.coordinator)
        self.low_watermark = base.low_watermark
        self._settled = RangeSet(base.settled, ranges_max=SETTLED_MAX + 1)
        return self

    def _forget(self, sequence: int) -> None:
        del self._where[sequence]
        del self._sequences[bisect_left(self._sequences, sequence)]


SUBSCRIPTIONS_MAX = 10_000
"""Most group partitions of one store; pending-ack-log has several partitions, a store for each."""

FORGET_AFTER_MS = 60 * 60 * 1000
"""A group partition without requests for this long is forgotten if its group's commit holds all."""

_DONE = Done()


class PendingAckState:
    """The acknowledgements in one pending-ack log; `apply` takes each effective request."""

    def __init__(self) -> None:
        self.subscriptions: dict[SubscriptionId, SubscriptionAcks] = {}
        self._coordinators: dict[int, CoordinatorView] = {}
        self._now_ms = 0  # the latest time in the log

    def apply(self, request: AckRequest, at_ms: int, *, quietly: bool = False) -> AckAnswer:
        """Applies one request of the log, with the time of its append; returns the answer.

        `quietly`: nobody is answered, so a claim costs no copy of the acknowledgements; `Done`.
        """
        self._now_ms = max(self._now_ms, at_ms)
        subscription, body = request.body
        assert subscription is not None, "a question is never logged"
        if isinstance(body, (Acknowledge, CursorMoved)):
            acks = self.subscriptions.get(subscription)
            if acks is None:
                return Refused("no member is attached", RefusalCode.NOT_ATTACHED)
            if body.member != acks.member or not _attached_by(request.client_id, acks):
                return Refused("another member holds the subscription", RefusalCode.NOT_ATTACHED)
            acks.last_seen_ms = self._now_ms
            return self._change(subscription, acks, body) or _DONE
        if isinstance(body, Settle):
            self._settle(subscription, body)
            return _DONE
        assert isinstance(body, Attach), "a question is never logged"
        refused = self._attach(subscription, body, request.client_id)
        return refused or (_DONE if quietly else self.acks(subscription))

    @property
    def idle(self) -> bool:
        """Whether nothing is pending in any transaction."""
        return not any(view.pending_count for view in self._coordinators.values())

    @property
    def item_count(self) -> int:
        """How many group partitions, offsets and ranges a base would hold."""
        return len(self.subscriptions) + sum(s.held_count for s in self.subscriptions.values())

    def acks(self, subscription: SubscriptionId) -> Acks:
        """The acknowledgements of one group partition; none if no member was ever attached."""
        acks = self.subscriptions.get(subscription)
        return Acks(EndOffset(0), (), (), b"") if acks is None else acks.acks()

    def highest_pending(self, subscription: SubscriptionId, txn: TxnId) -> int:
        """The highest offset that is pending in a transaction there; -1: there is none."""
        acks = self.subscriptions.get(subscription)
        pending = None if acks is None else acks.pending.get(txn)
        return -1 if pending is None else pending.highest

    def acks_for(self, subscription: SubscriptionId, client_id: bytes) -> Acks | Refused:
        """The acknowledgements, for the client whose member is attached; others are refused."""
        acks = self.subscriptions.get(subscription)
        if acks is not None and not _attached_by(client_id, acks):
            return Refused("another member holds the subscription", RefusalCode.NOT_ATTACHED)
        return self.acks(subscription)

    def base(self) -> AckState:
        """A copy of the whole state (C8)."""
        return AckState(
            self._now_ms,
            tuple(acks.base(subscription) for subscription, acks in self.subscriptions.items()),
            tuple(view.base() for view in self._coordinators.values()),
        )

    @classmethod
    def from_base(cls, base: AckState) -> "PendingAckState":
        """The state that `base` copied: the same further records have the same answers."""
        self = cls()
        self._now_ms = base.now_ms
        for coordinator in base.coordinators:
            view = CoordinatorView.from_base(coordinator)
            self._coordinators[coordinator.coordinator] = view
        for copied in base.subscriptions:
            acks = self.subscriptions[copied.subscription] = SubscriptionAcks.from_base(copied)
            for txn in acks.pending:
                self._view(txn.coordinator).acknowledged(txn.sequence, copied.subscription)
        return self

    def _attach(
        self, subscription: SubscriptionId, body: Attach, client_id: bytes
    ) -> Refused | None:
        acks = self.subscriptions.get(subscription)
        if body.reset:
            self._reset(subscription, body)
            return None
        if acks is None:
            if len(self.subscriptions) >= SUBSCRIPTIONS_MAX and not self._forget_one():
                reason = f"{SUBSCRIPTIONS_MAX} subscriptions share this log already"
                return Refused(reason, RefusalCode.TOO_MANY)
            acks = SubscriptionAcks()
        if body.member != acks.member:
            acks = acks.of_topic(body.topic_id)
            refused = acks.too_many(len(body.acknowledged)) or acks.attach(
                body.member, self._now_ms
            )
            if refused is not None:
                return refused
            acks.committed_by_group(body.cursor, body.acknowledged)
            if body.log_end is not None:
                forget_beyond(acks, body.log_end)
            acks.client_key, acks.client_name = client_key(client_id), body.client_name
            acks.topic_id = body.topic_id or acks.topic_id
        elif not _attached_by(client_id, acks):
            return Refused("another client has attached this member", RefusalCode.NOT_ATTACHED)
        acks.last_seen_ms = self._now_ms
        self.subscriptions[subscription] = acks
        return None

    def _reset(self, subscription: SubscriptionId, body: Attach) -> None:
        """Takes an operator's reset; a group partition that is not known stays so (G4)."""
        acks = self.subscriptions.get(subscription)
        if acks is None:
            return
        new = reset_by(body.member, acks, self._now_ms)
        if new is not acks:
            new.committed_by_group(body.cursor, body.acknowledged)
            self.subscriptions[subscription] = new

    def _change(
        self, subscription: SubscriptionId, acks: SubscriptionAcks, body: Acknowledge | CursorMoved
    ) -> Refused | None:
        if isinstance(body, CursorMoved):
            refused = acks.too_many(len(body.acknowledged))
            if refused is None:
                acks.committed_by_group(body.cursor, body.acknowledged)
            return refused
        txn = body.txn
        view = self._view(txn.coordinator)
        if view.has_ended(txn.sequence):
            reason = f"transaction {txn} has ended"
            return Refused(reason, RefusalCode.TRANSACTION_ENDED)
        known = txn in acks.pending  # then the view knows the transaction, too
        owner = client_key(body.txn_client_id) if body.txn_client_id else NO_CLIENT
        refused = acks.acknowledge(txn, body.offsets, body.cumulative_offset, owner)
        if not known and txn in acks.pending:
            view.acknowledged(txn.sequence, subscription)
        return refused

    def _settle(self, subscription: SubscriptionId, body: Settle) -> None:
        view = self._view(body.txn.coordinator)
        acks = self.subscriptions.get(subscription)
        if acks is not None:
            acks.settle(
                body.txn,
                committed=body.committed,
                client_key=body.client_key,
                log_end=OFFSET_MAX if body.log_end is None else body.log_end,
            )
        view.settled(body.txn.sequence, subscription)
        for txn, where in view.passed(body.low_watermark):
            acks = self.subscriptions.get(where)
            if acks is not None:  # otherwise it had nothing pending any more, and was forgotten
                acks.settle(txn, committed=False)

    def _view(self, coordinator: int) -> CoordinatorView:
        view = self._coordinators.get(coordinator)
        if view is None:
            view = self._coordinators[coordinator] = CoordinatorView(coordinator)
        return view

    def _forget_one(self) -> bool:
        """Forgets the longest unused group partition that its group's commit holds (G Bounds)."""
        until_ms = self._now_ms - FORGET_AFTER_MS
        silent = [
            (acks.last_seen_ms, subscription)
            for subscription, acks in self.subscriptions.items()
            if acks.last_seen_ms <= until_ms and acks.forgettable
        ]
        if silent:
            del self.subscriptions[min(silent)[1]]
        return bool(silent)


def _attached_by(client_id: bytes, acks: SubscriptionAcks) -> bool:
    """Whether a client may speak for the attached member (G Claims)."""
    return client_key(client_id) == acks.client_key
