"""Clients, a request path, a log with changing owners and markers, all in one process.

*Source*: rules B4, C0, C1, C2, C3, C4, C5, C6, C7, C8, L1, L2, L3. The world carries out effects as
drivers do, and checks each effect; the test chooses the next step and the faults.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import groupby

from stilltide.pipeline.core.buffered_log.bases import BaseLimits, Trim
from stilltide.pipeline.core.coordinator.admission import without_secret
from stilltide.pipeline.core.coordinator.base import state_of
from stilltide.pipeline.core.coordinator.machine import (
    AnnouncePartitions,
    Coordinator,
    CoordinatorEffect,
    EndParticipants,
    Propose,
    ReadEnds,
    Reply,
    WriteBase,
)
from stilltide.pipeline.core.coordinator.state import CoordinatorState
from stilltide.pipeline.core.service.session import ClientSession, GiveUp, Send
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    Answer,
    Decide,
    Describe,
    Description,
    End,
    EndPrepared,
    ForgetClients,
    Listed,
    ListTransactions,
    Open,
    Opened,
    Prepare,
    Registered,
    RequestBody,
    TxnLogRecord,
    Unknown,
    WriteBarrier,
    Written,
)
from stilltide.schemas.coordinator.txn_log import encode_state
from stilltide.schemas.log_frames import Base, Noop
from stilltide.schemas.service.envelopes import Done, Refused, Request, client_key
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.coordinator.judge import Judge

PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("pay", 0)]
CLIENTS = (b"a" * 16, b"b" * 16)
RETENTION_MS = 10 * 60 * 1000
"""Retention of the requests topic: older copies are deleted."""

ASK_TIMEOUT_MS = 20_000

BASE_LIMITS = BaseLimits(interval_ms=700, dead_floor=4, dead_factor=0)  # bases in most examples


@dataclass
class Client:
    """A client process: its session and how each of its requests ended (None: given up)."""

    name: bytes
    session: ClientSession
    asked: dict[int, RequestBody] = field(default_factory=dict)
    ended: dict[int, Answer | None] = field(default_factory=dict)
    acked_through: int = 0


@dataclass(eq=False)
class Owner:
    """A process that owns the log, or thinks so; `until` is the fence that replaced it."""

    machine: Coordinator
    clock_ahead_ms: int
    position: int
    until: int | None = None
    queue: deque["Append"] = field(default_factory=deque)


@dataclass(eq=False)
class Append:
    """A record on its way into the log, and the question that its read-back answers (C1)."""

    owner: Owner
    record: TxnLogRecord
    question: Request | None = None
    offset: int = -1  # of its entry; what lands together shares one
    known: dict[int, bool] = field(default_factory=dict)  # acknowledged before the question
    registered: list[dict[TopicPartition, Registered]] = field(default_factory=list)  # also before


@dataclass(eq=False)
class MarkerSet:
    """Markers of one effect; their owner hears of them when none is missing."""

    owner: Owner
    sequence: int
    missing: int
    failed: bool = False


class CoordinatorWorld:
    """The whole system; `judge` reads the same log in its own way."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.markers: dict[tuple[TopicPartition, TxnId], Marker] = {}
        self.judge = Judge(self.ends, self.markers)
        self.log: list[Append] = []
        self.end = 0  # of the log's offsets; fences and a zombie's entries have theirs too
        self.start = 0
        self.trims: list[tuple[Owner, int]] = []
        self.requests: list[tuple[int, Request]] = []
        self.sent: list[tuple[int, Request]] = []  # the topic still holds them
        self.responses: list[tuple[bytes, int, Answer]] = []
        self.marker_flights: list[tuple[MarkerSet, Marker]] = []
        self.end_reads: list[tuple[Owner, ReadEnds]] = []
        self.records: dict[int, dict[TopicPartition, list[int]]] = {}
        self.outcomes: dict[int, bool] = {}  # acknowledged to a client
        self.zombies: list[Owner] = []
        self.clients = [Client(name, ClientSession(name, 0)) for name in CLIENTS]
        self.new_owner(0)

    @property
    def processes(self) -> list[Owner]:
        """The owner, and the replaced owner, which may not know of the replacement yet."""
        return [self.owner, *self.zombies]

    # -- clients

    def registrations(self, data: tuple[TopicPartition, ...]) -> tuple[Registered, ...]:
        """Registrations from the present end offsets (C2)."""
        return tuple(Registered(one, EndOffset(self.ends[one]), b"") for one in data)

    def delivered(self, sequence: int) -> tuple[Written, ...]:
        """C6: what a transaction has written so far; it writes no more."""
        return tuple(
            Written(data, Offset(offsets[0]), EndOffset(offsets[-1] + 1), len(offsets))
            for data, offsets in self.records.pop(sequence, {}).items()
            if offsets
        )

    def ask(self, pick: int, body: RequestBody):
        """A client makes a request."""
        client = self.clients[pick % len(self.clients)]
        sent = client.session.made(body, self.now_ms, ASK_TIMEOUT_MS)
        assert sent.request.number == len(client.asked) + 1
        client.asked[sent.request.number] = body
        self.send(client, sent)

    def send(self, client: Client, sent: Send):
        """C1b: a client never repeats a request whose answer it has acknowledged."""
        number, acked_through = sent.request.number, sent.request.acked_through
        assert sent.request.body == client.asked[number]
        assert acked_through < number
        assert all(one in client.ended for one in range(1, acked_through + 1))
        assert number > client.acked_through
        client.acked_through = max(client.acked_through, acked_through)
        self.requests.append((self.now_ms, sent.request))
        self.sent.append((self.now_ms, sent.request))

    def tick_client(self, client: Client):
        """Carries out a session's effects."""
        for effect in client.session.tick(self.now_ms):
            match effect:
                case Send():
                    self.send(client, effect)
                case GiveUp(number):
                    self.end_request(client, number, None)

    def answer(self, name: bytes, number: int, answer: Answer):
        """A response arrives; only the first one ends the request."""
        client = next(one for one in self.clients if one.name == name)
        given = client.session.answered(number, answer, self.now_ms)
        assert (given is None) == (number in client.ended)
        if given is not None:
            self.end_request(client, number, given)

    def end_request(self, client: Client, number: int, answer: Answer | None):
        """Each request ends exactly once; its answer is compared with the log."""
        assert number not in client.ended
        client.ended[number] = answer
        body = client.asked[number]
        if isinstance(answer, Opened):
            for sequence in range(answer.first_sequence, sum(answer)):
                self.know_registrations(sequence, body)
        elif isinstance(body, AddPartitions) and isinstance(answer, Done):
            self.know_registrations(body.sequence, body)
        elif isinstance(body, End | EndPrepared | Decide) and isinstance(answer, Done):
            assert self.outcomes.setdefault(body.sequence, body.committed) == body.committed

    def know_registrations(self, sequence: int, body: RequestBody):
        """The client may write to these partitions now, unless it has ended the transaction."""
        assert isinstance(body, Open | AddPartitions)
        ends = [b for c in self.clients for b in c.asked.values() if isinstance(b, End | Prepare)]
        if all(end.sequence != sequence for end in ends):
            held = self.records.setdefault(sequence, {})
            for one in body.partitions:
                held.setdefault(one.data, [])

    def wait(self, elapsed_ms: int):
        """Time passes; old requests leave their topic."""
        self.now_ms += elapsed_ms
        oldest_ms = self.now_ms - RETENTION_MS
        self.requests = [(sent, one) for sent, one in self.requests if sent >= oldest_ms]
        self.sent = [(sent, one) for sent, one in self.sent if sent >= oldest_ms]

    # -- owners and their log

    def replace_owner(self, ahead_ms: int):
        """B1, B4: appends of the old owner that are under way will not be effective."""
        self.end += len(self.owner.queue) % 2  # it may land, and is not effective
        self.owner.until = len(self.log)
        self.owner.queue.clear()
        self.zombies = [self.owner]
        self.new_owner(ahead_ms)

    def land(self, count: int):
        """Makes the owner's oldest appends effective, in one entry."""
        for _ in range(landed := min(count, len(self.owner.queue))):
            append = self.owner.queue.popleft()
            append.offset = self.end
            self.log.append(append)
            self.judge.read(append.record)
        self.end += landed > 0

    def fail_append(self):
        """B5: the owner's oldest append will never be effective."""
        body = self.owner.queue.popleft().record.body
        if isinstance(body, Base):
            self.owner.machine.base_lost(body.as_of, self.clock(self.owner))
        elif not isinstance(body, Request | Noop | ForgetClients):
            self.owner.machine.lost(body.sequence, self.clock(self.owner))

    def tick_owner(self, owner: Owner):
        """C7: a deadline of the owner has come, by its own clock."""
        self.run(owner, owner.machine.tick(self.clock(owner)))

    def clock(self, owner: Owner) -> int:
        """The owner's clock; clocks of two owners differ."""
        return self.now_ms + owner.clock_ahead_ms

    def new_owner(self, ahead_ms: int):
        """B1: replays the log from its start, then serves."""
        epoch = Offset(self.end)
        self.end += 1
        owner = Owner(self.replayed(ahead_ms), ahead_ms, len(self.log))
        self.owner = owner
        self.run(owner, owner.machine.serve(epoch, self.clock(owner)))

    def replayed(self, ahead_ms: int = 0) -> Coordinator:
        """C8: a new machine after reading the whole remaining log."""
        machine = Coordinator(0, Offset(self.start), base_limits=BASE_LIMITS)
        kept = [one for one in self.log if one.offset >= self.start]
        for offset, group in groupby(kept, key=lambda one: one.offset):
            records = [one.record for one in group]
            now_ms = self.now_ms + ahead_ms
            effects = machine.applied(Offset(offset), records, own=False, now_ms=now_ms)
            assert not effects, "acts before it serves"
        return machine

    def append(self, owner: Owner, body: object, **question: object):
        """Queues an append; ignores the append of a replaced owner."""
        if owner is self.owner:
            record = TxnLogRecord(body, self.clock(owner))
            owner.queue.append(Append(owner, record, **question))

    def arrive(self, request: Request):
        """Handles a request as the driver does; appends a no-op for a question (C1)."""
        self.run(self.owner, self.owner.machine.appending())
        if isinstance(request.body, Describe | ListTransactions | WriteBarrier):
            known, held = dict(self.outcomes), [dict(it.registered) for it in self.judge.fates]
            self.append(self.owner, Noop(), question=request, known=known, registered=held)
        elif isinstance(request.body, EndPrepared):
            self.append(self.owner, without_secret(request, request.body))
        else:
            self.append(self.owner, request)

    def read(self, owner: Owner, count: int):
        """Reads some entries, and answers the questions after each."""
        until = len(self.log) if owner.until is None else owner.until
        for _ in range(count):
            if owner.position >= until:
                return
            offset = self.log[owner.position].offset
            if offset < self.start:
                owner.until = owner.position  # B3: overtaken by a trim
                return
            entry = [one for one in self.log[owner.position : until] if one.offset == offset]
            owner.position += len(entry)
            own, now_ms = entry[0].owner is owner, self.clock(owner)
            records = [one.record for one in entry]
            self.run(owner, owner.machine.applied(Offset(offset), records, own=own, now_ms=now_ms))
            for one in entry if own else ():
                if one.question is not None:
                    if isinstance(one.question.body, WriteBarrier):
                        self.inform_writer(owner, one.question, one.registered)
                    else:
                        self.inform(owner, one.question, one.known)

    def inform(self, owner: Owner, question: Request, known: dict[int, bool]):
        """C1: an answer shows everything acknowledged before the question arrived."""
        answer = owner.machine.asked(question, operator=True)
        shown = {answer.sequence: answer} if isinstance(answer, Description) else {}
        if isinstance(answer, Listed):
            shown = {one.sequence: one for one in answer.transactions}
            assert all(sequence >= answer.low_watermark for sequence in shown)
        for sequence in shown.keys() & known.keys():
            one, state = shown[sequence], "COMMITTING" if known[sequence] else "ABORTING"
            assert one.state == state or (one.state, one.committed) == ("ENDED", known[sequence])
        self.responses.append((question.client_id, question.number, answer))

    def inform_writer(self, owner: Owner, question: Request, registered: list):
        """E1: what had registered before the probe shows as open, or has ended with its markers."""
        barrier = owner.machine.barrier(question.body, 1)
        starts = {one.data: one.start_offset for one in barrier.open}
        for fate, partitions in zip(self.judge.fates, registered, strict=False):
            for data, one in partitions.items():
                assert fate.ended or starts[data] <= one.start_offset
        assert all(fate.ended for fate in self.judge.fates[: barrier.low_watermark])
        self.responses.append((question.client_id, question.number, Done()))

    def run(self, owner: Owner, effects: list[CoordinatorEffect]):
        """Carries out effects as a driver does, and checks what must be durable before."""
        for effect in effects:
            match effect:
                case Reply(request, answer):
                    self.check_reply(owner, request, answer)
                    self.responses.append((request.client_id, request.number, answer))
                case Propose(body):
                    self.append(owner, body)
                case ReadEnds(sequence, partitions):
                    assert self.judge.fates[sequence].committed is False
                    assert set(partitions) == set(self.judge.fates[sequence].registered)
                    self.end_reads.append((owner, effect))
                case EndParticipants(sequence, committed, markers, subscriptions):
                    assert committed is self.judge.fates[sequence].committed
                    assert set(subscriptions) == self.judge.fates[sequence].subscriptions
                    self.check_markers(sequence, list(markers))
                    batch = MarkerSet(owner, sequence, len(markers))
                    self.marker_flights += [(batch, marker) for marker in markers]
                    if not markers:
                        ended = owner.machine.participants_ended(sequence, self.clock(owner))
                        self.run(owner, ended)
                case AnnouncePartitions(partitions):
                    self.judge.announced(partitions)
                case WriteBase():
                    self.write_base(owner, effect)
                case Trim(offset):
                    assert offset in self.legal_starts()
                    self.trims.append((owner, offset))

    # -- bases and trims

    def write_base(self, owner: Owner, effect: WriteBase):
        """C8: what is effective below the offset, and nothing else; in one to three pieces."""
        if owner is not self.owner:
            return
        state = CoordinatorState()
        for one in self.log:
            if one.offset < effect.as_of:
                state.apply(one.record)
        assert effect.state == state_of(state)
        data = b"".join(encode_state(effect.state))
        size = max(1, -(-len(data) // (1 + len(self.log) % 3)))
        starts = range(0, len(data) or 1, size)
        for index, start in enumerate(starts):
            piece = data[start : start + size]
            self.append(owner, Base(effect.as_of, index, len(starts), piece))

    def legal_starts(self) -> list[int]:
        """C8: effective entries at or below the offset of a base that is effective as a whole."""
        pieces: dict[tuple[int, int], int] = {}  # of the base that its owner tries just now
        as_of = 0
        for one in self.log:
            base = one.record.body
            if isinstance(base, Base):
                key = id(one.owner), base.as_of
                if base.piece_index == pieces.get(key, 0) or base.piece_index == 0:
                    pieces[key] = base.piece_index + 1
                if base.piece_index + 1 == base.piece_count == pieces.get(key):
                    as_of = max(as_of, base.as_of)
        return sorted({one.offset for one in self.log if one.offset <= as_of})

    def trim(self, offset: int):
        """Trims the log; checks that the state after a replay is the same."""
        self.start = max(self.start, offset)
        assert state_of(self.replayed().state) == state_of(self.judge.state)

    def trim_done(self, pick: int, *, lands: bool, fails: bool):
        """Ends one trim; a dead process gets no report."""
        owner, offset = self.trims.pop(pick % len(self.trims))
        if lands:
            self.trim(offset)
        if owner in self.processes and fails:
            owner.machine.trim_failed(Offset(offset), self.clock(owner))
        elif owner in self.processes:
            owner.machine.trimmed(Offset(offset))

    def check_reply(self, owner: Owner, request: Request, answer: Answer):
        """C1, C5: an answer leaves behind the entry that makes it true."""
        mine = [one.record.body for one in self.log[: owner.position] if one.owner is owner]
        assert request in mine
        body = request.body
        if isinstance(answer, Unknown):
            return
        known = self.judge.answers[client_key(request.client_id), request.number]
        assert type(answer) is type(known)
        assert isinstance(answer, Refused) or answer == known
        if isinstance(body, End | Decide) and body.wait_visible and isinstance(answer, Done):
            assert not self.judge.missing_markers(body.sequence)

    def check_markers(self, sequence: int, markers: list[Marker]):
        """C2, C3, C4: each partition that may hold records has a marker as the log demands."""
        fate = self.judge.fates[sequence]
        assert {one.data for one in markers} == self.judge.marked_partitions(sequence)
        written = {one.data: one for one in fate.written}
        for marker in markers:
            assert marker.txn == TxnId(0, sequence)
            assert marker.committed is fate.committed
            assert marker.start_offset == fate.registered[marker.data].start_offset
            if not marker.committed:
                assert marker.end_offset >= fate.ends_when_decided[marker.data]
            else:
                assert marker.end_offset == written[marker.data].end_offset
                assert marker.record_count == written[marker.data].record_count

    def marker_done(self, pick: int, *, lands: bool, fails: bool):
        """Ends one marker's write; its owner gets a report when the whole set is done."""
        batch, marker = self.marker_flights.pop(pick % len(self.marker_flights))
        if lands:
            before = self.markers.get((marker.data, marker.txn))
            assert before is None or before.committed == marker.committed, "both outcomes"
            self.markers[marker.data, marker.txn] = marker
        batch.missing -= 1
        batch.failed |= fails
        if batch.missing or batch.owner not in self.processes:
            return
        if batch.failed:
            batch.owner.machine.lost(batch.sequence, self.clock(batch.owner))
        else:
            machine = batch.owner.machine
            ended = machine.participants_ended(batch.sequence, self.clock(batch.owner))
            self.run(batch.owner, ended)

    def ends_done(self, pick: int, *, fails: bool):
        """Ends one read of end offsets; a dead process gets no report."""
        owner, asked = self.end_reads.pop(pick % len(self.end_reads))
        if owner not in self.processes:
            return
        if fails:
            owner.machine.lost(asked.sequence, self.clock(owner))
        else:
            ends = {data: EndOffset(self.ends[data]) for data in asked.partitions}
            self.run(owner, owner.machine.ends_read(asked.sequence, ends))

    # -- when nothing goes wrong

    def arrive_calmly(self):
        """Every request reaches the owner."""
        while self.requests:
            self.arrive(self.requests.pop(0)[1])

    def talk_calmly(self):
        """Every request is answered as far as the log allows."""
        self.arrive_calmly()
        self.log_calmly()
        while self.responses:
            self.answer(*self.responses.pop(0))

    def log_calmly(self):
        """Every append lands and is read."""
        while self.owner.queue or self.owner.position < len(self.log):
            self.land(len(self.owner.queue))
            self.read(self.owner, 100)

    def drive_calmly(self):
        """Every marker is written, every end offset read, until nothing is under way."""
        while self.owner.queue or self.marker_flights or self.end_reads or self.trims:
            self.log_calmly()
            while self.trims:
                self.trim_done(0, lands=True, fails=False)
            while self.marker_flights:
                self.marker_done(0, lands=True, fails=False)
            while self.end_reads:
                self.ends_done(0, fails=False)

    def calm_round(self):
        """Does all calm steps, then lets more than half a second pass."""
        for client in self.clients:
            self.tick_client(client)
        self.tick_owner(self.owner)
        self.talk_calmly()
        self.drive_calmly()
        self.talk_calmly()
        self.now_ms += 600
