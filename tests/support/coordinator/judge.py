"""An independent model of a coordinator's log, with which tests compare the real state.

*Source*: rules C0, C1b, C2, C4, C6, C7, C11, L1, L2, L3, without `pipeline.core`: one list
of transactions that is never shortened, and one answer for each request that is never forgotten.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stilltide.pipeline.core.coordinator.state import CoordinatorState
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AddPartitions,
    AddSubscriptions,
    Answer,
    Decide,
    End,
    Ended,
    ForgetClients,
    Open,
    Opened,
    Prepare,
    Registered,
    Release,
    TimedOut,
    TxnLogRecord,
    Unknown,
    Written,
)
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused, Request, client_key
from stilltide.schemas.values import SubscriptionId, TopicPartition, TxnId

HOUR_MS = 60 * 60 * 1000


@dataclass
class Fate:
    """One transaction; `committed` is None while it is open, or prepared by `prepared`."""

    registered: dict[TopicPartition, Registered] = field(default_factory=dict)
    subscriptions: set[SubscriptionId] = field(default_factory=set)
    owner: bytes = b""
    committed: bool | None = None
    written: tuple[Written, ...] = ()
    ends_when_decided: dict[TopicPartition, int] = field(default_factory=dict)
    ended: bool = False
    prepared: Prepare | None = None


def is_waiting(fate: Fate) -> bool:
    """L1: whether a transaction is prepared, and nobody has decided how it ends."""
    return fate.prepared is not None and fate.committed is None


class Judge:
    """Reads the effective records in log order, and compares with a fresh `CoordinatorState`.

    Args:
        ends: end offsets of the data partitions, as they are now.
        markers: the durable markers, as they are now.
    """

    def __init__(
        self, ends: dict[TopicPartition, int], markers: dict[tuple[TopicPartition, TxnId], Marker]
    ) -> None:
        self.state = CoordinatorState()
        self.fates: list[Fate] = []
        self.answers: dict[tuple[bytes, int], Answer] = {}
        self._ends = ends
        self._markers = markers
        self._heard_ms: dict[bytes, int] = {}
        self._acked: dict[bytes, int] = {}
        self._unknown: dict[bytes, int] = {}

    def read(self, record: TxnLogRecord) -> None:
        """Applies the next effective record to both, and compares them."""
        body = record.body
        expected: Answer | None = None
        if isinstance(body, Request):
            expected = self._request(body, record.at_ms)
        elif isinstance(body, TimedOut):
            if self.fates[body.sequence].prepared is None:  # L1
                self._decide(body.sequence, committed=False)
        elif isinstance(body, Ended):
            self._ended(body.sequence)
        elif isinstance(body, ForgetClients):
            self._forget(body.client_keys, record.at_ms)
        given = self.state.apply(record)
        if isinstance(given, Refused):
            decided = given.code in (RefusalCode.COMMITTED, RefusalCode.ABORTED)
            given = Refused("", given.code) if decided else Refused("")
        assert given == expected, f"C0, C1b: answered {given}, expected {expected} to {body}"
        self._compare()

    def marked_partitions(self, sequence: int) -> set[TopicPartition]:
        """The partitions that may hold records, where readers need the outcome (C4, C6)."""
        fate = self.fates[sequence]
        if fate.committed is None:  # released, when it has ended
            return set()
        return {one.data for one in fate.written} if fate.committed else set(fate.registered)

    def missing_markers(self, sequence: int) -> list[TopicPartition]:
        """Partitions of a transaction without the marker that its outcome asks for (C4)."""
        fate = self.fates[sequence]
        found = {
            data: self._markers.get((data, TxnId(0, sequence)))
            for data in self.marked_partitions(sequence)
        }
        return [
            data
            for data, marker in found.items()
            if marker is None or marker.committed != fate.committed
        ]

    def _request(self, request: Request, at_ms: int) -> Answer | None:
        """C1b: the right answer to the request; None if the request is to be ignored."""
        client, number = client_key(request.client_id), request.number
        if client not in self._heard_ms:
            self._unknown[client] = number if request.acked_through else 0
        self._heard_ms[client] = max(self._heard_ms.get(client, 0), at_ms)
        self._acked[client] = max(self._acked.get(client, 0), request.acked_through)
        if number <= self._acked[client]:
            return None
        if number <= self._unknown[client]:
            return Unknown()
        if (client, number) not in self.answers:
            self.answers[client, number] = self._effect(client, request.body)
        return self.answers[client, number]

    def _effect(self, client: bytes, body: object) -> Answer:
        """C0: carries a request out, or refuses it and changes nothing."""
        if isinstance(body, Open):
            first = len(self.fates)
            for _ in range(body.transaction_count):
                self.fates.append(Fate(owner=client))
                self._register(len(self.fates) - 1, body.partitions)
                self.fates[-1].subscriptions |= set(body.subscriptions)
            return Opened(first, body.transaction_count)
        if isinstance(body, Release):
            return self._release(client, body)
        if isinstance(body, Decide):
            return self._end_prepared(body)
        return self._change(client, body)

    def _change(self, client: bytes, body: object) -> Answer:
        """C0, C11: changes one transaction, or refuses to."""
        assert isinstance(body, AddPartitions | AddSubscriptions | End | Abort | Prepare)
        if body.sequence >= len(self.fates):
            return Refused("")
        fate = self.fates[body.sequence]
        if isinstance(body, Abort):  # C11: an operator's, for any owner
            body = End(body.sequence, committed=False, written=(), wait_visible=False)
        elif fate.owner != client:  # C11: nothing of another's transaction is changed
            return Refused("")
        if isinstance(body, Prepare):
            return self._prepare(fate, body)
        if not self._legal(fate, body):
            return Refused("")
        if isinstance(body, AddPartitions):
            self._register(body.sequence, body.partitions)
        elif isinstance(body, AddSubscriptions):
            fate.subscriptions |= set(body.subscriptions)
        elif fate.committed is None:
            fate.written = body.written if body.committed else ()
            if body.acknowledged_in is not None:
                fate.subscriptions = set(body.acknowledged_in)
            self._decide(body.sequence, committed=body.committed)
        return Done()

    def _prepare(self, fate: Fate, body: Prepare) -> Answer:
        """L1: what could commit is final from now on; the same again changes nothing."""
        if fate.ended or fate.committed is not None:
            return Refused("")
        if fate.prepared is not None:
            used = fate.subscriptions if body.acknowledged_in is None else body.acknowledged_in
            before = fate.prepared._replace(acknowledged_in=frozenset(fate.subscriptions))
            again = body._replace(acknowledged_in=frozenset(used))
            return Done() if before == again else Refused("")
        if not self._could_commit(fate, body):
            return Refused("")
        fate.prepared, fate.written = body, body.written
        if body.acknowledged_in is not None:
            fate.subscriptions = set(body.acknowledged_in)
        return Done()

    def _end_prepared(self, body: Decide) -> Answer:
        """L2, L3: by an operator, or by the right secret; what was decided first stands."""
        if body.sequence >= len(self.fates):
            return Refused("")
        fate = self.fates[body.sequence]
        if not fate.ended:
            if fate.prepared is None:
                return Refused("")
            if body.secret_hash not in (b"", fate.prepared.secret_hash):
                return Refused("")
            self._decide(body.sequence, committed=body.committed)
        stands = bool(fate.committed)
        if stands is body.committed:
            return Done()
        return Refused("", RefusalCode.COMMITTED if stands else RefusalCode.ABORTED)

    def _could_commit(self, fate: Fate, body: End | Prepare) -> bool:
        used = body.acknowledged_in or ()
        return fate.subscriptions.issuperset(used) and self._true_counts(fate, body.written)

    def _release(self, client: bytes, body: Release) -> Answer:
        """C9, C11: those that are open end here and now, if all are the client's own."""
        if max(body.sequences, default=-1) >= len(self.fates):
            return Refused("")
        held = [self.fates[it] for it in body.sequences if not self.fates[it].ended]
        if any(fate.owner != client or is_waiting(fate) for fate in held):
            return Refused("")
        for sequence in body.sequences:
            self.fates[sequence].ended |= self.fates[sequence].committed is None
        return Done()

    def _legal(self, fate: Fate, body: AddPartitions | AddSubscriptions | End) -> bool:
        if is_waiting(fate):  # L1: its token ends it
            return False
        if not isinstance(body, End):
            return fate.committed is None and not fate.ended
        if fate.committed is not None or fate.ended:
            return not fate.ended and fate.committed == body.committed
        if body.committed:
            return self._could_commit(fate, body)
        return fate.subscriptions.issuperset(body.acknowledged_in or ())

    def _register(self, sequence: int, partitions: tuple[Registered, ...]) -> None:
        for one in partitions:
            self.fates[sequence].registered.setdefault(one.data, one)

    def announced(self, partitions: Sequence[TopicPartition]):
        """E7: a partition is announced because a transaction has registered there."""
        assert set(partitions) <= set().union(*(fate.registered for fate in self.fates))

    def _true_counts(self, fate: Fate, written: tuple[Written, ...]) -> bool:
        """C6: each partition once, registered, and a count that fits its range."""
        return len({one.data for one in written}) == len(written) and all(
            one.data in fate.registered
            and fate.registered[one.data].start_offset <= one.first_offset
            and 0 < one.record_count <= one.end_offset - one.first_offset
            for one in written
        )

    def _decide(self, sequence: int, *, committed: bool) -> None:
        fate = self.fates[sequence]
        if fate.committed is None and not fate.ended:
            fate.committed = committed
            fate.ends_when_decided = dict(self._ends)

    def _ended(self, sequence: int) -> None:
        fate = self.fates[sequence]
        assert fate.committed is not None, "ended while open"
        assert not self.missing_markers(sequence), "C4: ended before its markers were durable"
        fate.ended = True

    def _forget(self, clients: tuple[bytes, ...], at_ms: int) -> None:
        for client in clients:
            if client in self._heard_ms and at_ms - self._heard_ms[client] >= HOUR_MS:
                del self._heard_ms[client]
                self._acked.pop(client, None)

    def _compare(self) -> None:
        """C0, C2, C7: compares the whole state with the model."""
        alive = {n: fate for n, fate in enumerate(self.fates) if not fate.ended}
        names = {None: "OPEN", True: "COMMITTING", False: "ABORTING"}
        states = {n: "PREPARED" if is_waiting(f) else names[f.committed] for n, f in alive.items()}
        assert {
            sequence: (txn.state.value, txn.partitions, set(txn.subscriptions), txn.written)
            for sequence, txn in self.state.transactions.items()
        } == {n: (states[n], f.registered, f.subscriptions, f.written) for n, f in alive.items()}
        self._compare_shares(alive.values())
        assert self.state.next_sequence == len(self.fates)
        assert self.state.low_watermark == min(alive, default=len(self.fates))

    def _compare_shares(self, alive: Iterable[Fate]) -> None:
        """C16: what each client holds in open transactions, and what all transactions hold."""
        held: dict[bytes, tuple[int, int, int]] = {}
        for fate in alive:
            if fate.committed is None:
                transactions, registrations, prepared = held.get(fate.owner, (0, 0, 0))
                more = len(fate.registered) + len(fate.subscriptions)
                waits = prepared + is_waiting(fate)
                held[fate.owner] = transactions + 1, registrations + more, waits
        shares = {
            key: (it.transactions, it.registrations, it.prepared)
            for key, it in self.state.held.items()
        }
        assert shares == held
        all_held = sum(len(it.registered) + len(it.subscriptions) for it in alive)
        assert self.state.registration_count == all_held
