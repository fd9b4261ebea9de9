"""Several owners of one log over a network that delays, reorders, loses and times out.

Strangers write to the log as well: entries that nobody can use, and native transactions, whose
control records leave gaps that are no trims.

*Source*: rules A1, A5, B1, B2, B3, B4, B5, B6, B7. The whole history of the log is kept beside the
log, so that B2 can be asked of any entry, trimmed or not, in the words of the page.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stilltide.pipeline.core.buffered_log.owner import (
    AppendNoop,
    Apply,
    EffectiveLog,
    EntryWritten,
    Fenced,
    Foreign,
    LogGapError,
    LogOwner,
    OwnerEffect,
    OwnerState,
    Serve,
)
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.values import Offset
from tests.support.examples import examples

OWNERS_MAX = 4
PICK = st.integers(0, 10**6)

Fence = bytes


class Stranger(Enum):
    """What takes an offset and is of no owner."""

    GARBAGE = auto()
    CONTROL = auto()  # of a native transaction: no reader is given it


Entry = Fence | EntryStamp | Stranger


@dataclass
class Process:
    """A process that takes the log over, and the results reported to it."""

    nonce: bytes
    owner: LogOwner
    start: int
    position: int
    serials: int = 0
    applied: list[tuple[int, int | None]] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)  # serial -> offset
    lost: set[int] = field(default_factory=set)
    settled: list[int] = field(default_factory=list)
    fenced_at: int | None = None
    stopped: bool = False


@dataclass
class Flight:
    """An append on its way; `given_up`: its producer reported a time-out already."""

    process: Process
    entry: Entry
    given_up: bool = False


def effective(history: list[Entry], offset: int) -> bool:
    """B2, word for word, over the whole history; nothing before its fence is of an epoch (B6)."""
    entry = history[offset]
    if not isinstance(entry, EntryStamp):
        return False
    before = history[:offset]
    fences = [at for at, one in enumerate(before) if isinstance(one, Fence)]
    own = [
        it.serial
        for it in before[entry.epoch :]
        if isinstance(it, EntryStamp) and it.epoch == entry.epoch
    ]
    return bool(fences) and fences[-1] == entry.epoch and all(entry.serial > one for one in own)


class LogOwners(RuleBasedStateMachine):
    """Processes come, write and are replaced; the network and a trimmer do their worst."""

    def __init__(self) -> None:
        super().__init__()
        self.damage = DecodeError("no records")
        self.history: list[Entry] = []
        self.effective: list[bool] = []
        self.start = 0
        self.flights: list[Flight] = []
        self.processes: list[Process] = []
        self.nonces = 0

    # -- what processes do

    @precondition(lambda self: sum(not one.stopped for one in self.processes) < OWNERS_MAX)
    @rule()
    def take_over(self):
        """B1: another process begins at the log start and appends its fence."""
        self.nonces += 1
        nonce = self.nonces.to_bytes(16, "big")
        owner = LogOwner(nonce, Offset(self.start))
        process = Process(nonce, owner, self.start, self.start)
        self.processes.append(process)
        self.flights.append(Flight(process, nonce))

    @precondition(lambda self: self.serving())
    @rule(pick=PICK, count=st.integers(1, 3))
    def write(self, pick: int, count: int):
        """A serving owner sends entries."""
        process = self.serving()[pick % len(self.serving())]
        for _ in range(count):
            self.send(process)

    @precondition(lambda self: self.processes)
    @rule(pick=PICK, count=st.integers(1, 8))
    def read(self, pick: int, count: int):
        """A process reads on; one that a trim has overtaken meets the gap, or starts over."""
        process = self.processes[pick % len(self.processes)]
        for _ in range(count):
            self.read_one(process)

    # -- what the world does

    @precondition(lambda self: self.flights)
    @rule(pick=PICK)
    def land(self, pick: int):
        """Any append lands, however late and in whatever order."""
        flight = self.flights.pop(pick % len(self.flights))
        self.append(flight.entry)

    @precondition(lambda self: self.flights)
    @rule()
    def land_in_order(self):
        """The oldest append lands: what a network does most of the time."""
        self.land(0)

    @precondition(lambda self: self.flights)
    @rule(pick=PICK)
    def lose(self, pick: int):
        """An append never lands; its producer says so, in the end."""
        flight = self.flights.pop(pick % len(self.flights))
        self.give_up(flight)

    @precondition(lambda self: self.flights)
    @rule(pick=PICK)
    def time_out(self, pick: int):
        """A5: the producer gives up, the append may still land."""
        self.give_up(self.flights[pick % len(self.flights)])

    @rule(stranger=st.sampled_from(Stranger))
    def intrude(self, stranger: Stranger):
        """B6, B7: a stranger writes a record that is no entry, or a native transaction ends."""
        self.append(stranger)

    @rule(epoch=PICK, serial=st.integers(0, 9))
    def forge(self, epoch: int, serial: int):
        """B6: a stranger writes an entry with an old stamp, or with one that no owner has."""
        stamp = EntryStamp(Offset(epoch % (len(self.history) + 2)), serial)
        if not effective([*self.history, stamp], len(self.history)):
            self.append(stamp)

    @precondition(lambda self: any(self.effective[self.start :]))
    @rule(pick=PICK)
    def trim(self, pick: int):
        """C8: to an effective entry, never to the end."""
        at = [o for o in range(self.start, len(self.history)) if self.effective[o]]
        self.start = at[pick % len(at)]

    # -- how

    def append(self, entry: Entry):
        """It lands behind everything else."""
        self.history.append(entry)
        self.effective.append(effective(self.history, len(self.history) - 1))

    def next_readable(self, offset: int) -> int | None:
        """Offset of the first entry at or above `offset` that a reader gets."""
        for at in range(offset, len(self.history)):
            if self.history[at] is not Stranger.CONTROL:
                return at
        return None

    def serving(self) -> list[Process]:
        """Processes that believe they own the log."""
        return [one for one in self.processes if one.owner.state is OwnerState.SERVING]

    def send(self, process: Process):
        """Puts the process's next entry on its way."""
        process.serials += 1
        stamp = process.owner.stamp(process.serials)
        process.owner.entry_written(process.serials)
        self.flights.append(Flight(process, stamp))

    def give_up(self, flight: Flight):
        """Says a failure once; a fence that fails is only ever waited for."""
        if flight.given_up or isinstance(flight.entry, Fence):
            return
        flight.given_up = True
        self.run(flight.process, flight.process.owner.write_failed(flight.entry.serial), None)

    def read_one(self, process: Process):
        """One entry, perhaps behind control records, or the gap that a trim has left."""
        offset = self.next_readable(max(process.position, self.start))
        if process.stopped or offset is None:
            return
        if self.start > process.position:
            with pytest.raises(LogGapError):
                process.owner.gap_read(Offset(offset), Offset(self.start))
            if process.owner.state is OwnerState.REPLAYING and self.may_begin_anew(process):
                process.owner = LogOwner(process.nonce, Offset(self.start))
                process.start = process.position = self.start
                process.applied.clear()
                process.foreign.clear()
            else:
                process.owner.replaced()
                process.stopped = True
            return
        if offset > process.position:
            process.owner.gap_read(Offset(offset), Offset(self.start))
        process.position = offset + 1
        self.run(process, self.feed(process, offset), offset)

    def may_begin_anew(self, process: Process) -> bool:
        """B3: from the log start, unless its fence was trimmed or will never be known to land."""
        return process.nonce in self.history[self.start :]

    def feed(self, process: Process, offset: int) -> list[OwnerEffect]:
        """Hands the entry at `offset` to the owner; only an effective one has to hold records."""
        entry = self.history[offset]
        if isinstance(entry, Fence):
            return process.owner.fence_read(Offset(offset), entry)
        if isinstance(entry, Stranger):
            return process.owner.foreign_read(Offset(offset))
        damage = None if self.effective[offset] else self.damage
        return process.owner.entry_read(Offset(offset), entry, damage)

    def run(self, process: Process, effects: list[OwnerEffect], offset: int | None):
        """Does what the effects say, and checks that each is allowed now."""
        for effect in effects:
            match effect:
                case Apply(serial):
                    assert offset is not None
                    process.applied.append((offset, serial))
                case EntryWritten(serial, at):
                    assert process.fenced_at is None, "settled behind a later fence (B4)"
                    process.settled.append(serial)
                    if at is None:
                        process.lost.add(serial)
                    else:
                        process.written[serial] = at
                case Serve(epoch):
                    assert self.history[epoch] == process.nonce
                    assert epoch == offset
                case Foreign():
                    assert offset is not None
                    process.foreign.append(offset)
                case Fenced(at):
                    assert process.fenced_at is None
                    assert at == offset
                    process.fenced_at = at
                case AppendNoop():
                    self.send(process)

    # -- what must hold

    @invariant()
    def written_means_effective(self):
        """B2, B3: what an owner reports as written counts for every reader, and is its own."""
        for process in self.processes:
            for serial, offset in process.written.items():
                assert self.history[offset] == EntryStamp(process.owner.epoch, serial)
                assert self.effective[offset]

    @invariant()
    def lost_means_never_effective(self):
        """A5, B5: what an owner reports as not written does not come to life later."""
        lost = {(one.owner.epoch, serial) for one in self.processes for serial in one.lost}
        assert not any(
            counts and (entry.epoch, entry.serial) in lost
            for entry, counts in zip(self.history, self.effective, strict=True)
            if isinstance(entry, EntryStamp)
        )

    @invariant()
    def settles_once_in_order(self):
        """A1: each entry is settled once, in the order of writing, none left out."""
        for process in self.processes:
            assert process.settled == list(range(1, len(process.settled) + 1))
            if process.owner.state is OwnerState.SERVING:
                assert process.owner.in_flight == process.serials - len(process.settled)
            else:
                assert process.owner.in_flight == 0

    @invariant()
    def applies_what_is_effective(self):
        """B2, B3: every owner applies the same entries, from its start to its later fence."""
        for process in self.processes:
            until = process.position if process.fenced_at is None else process.fenced_at
            expected = [
                (offset, entry.serial if entry.epoch == process.owner.epoch else None)
                for offset, entry in enumerate(self.history[:until])
                if offset >= process.start and self.effective[offset]
            ]
            assert process.applied == expected

    @invariant()
    def passes_over_what_is_foreign(self):
        """B6: every owner passes over the same entries: neither effective ones nor fences."""
        for process in self.processes:
            until = process.position if process.fenced_at is None else process.fenced_at
            assert process.foreign == [
                offset
                for offset, entry in enumerate(self.history[:until])
                if offset >= process.start
                and not self.effective[offset]
                and not isinstance(entry, Fence)
                and entry is not Stranger.CONTROL
            ]

    @invariant()
    def serves_from_its_own_fence(self):
        """B1: an owner serves as soon as it has read its fence, and its epoch is that offset."""
        for process in self.processes:
            seen = [
                offset
                for offset in range(process.start, process.position)
                if self.history[offset] == process.nonce
            ]
            assert process.owner.epoch == (seen[0] if seen else None)
            replaying = process.owner.state is OwnerState.REPLAYING
            assert replaying == (not seen and not process.stopped)

    def teardown(self):
        """B2, B5: every reader agrees, and an owner that was not replaced reports every entry."""
        self.every_reader_agrees()
        while self.flights:
            self.land(0)
            for process in self.processes:
                self.read_one(process)
        for _ in range(len(self.history)):
            for process in self.processes:
                self.read_one(process)
        for process in self.serving():
            assert process.owner.in_flight == 0
            assert process.serials == len(process.settled)
        self.every_reader_agrees()

    def every_reader_agrees(self):
        """B2: from the log start, whatever was trimmed, the verdicts are those of the history."""
        view = EffectiveLog(Offset(self.start))
        offset = self.next_readable(self.start)
        while offset is not None:
            if offset > view.next_offset:
                view.gap_read(Offset(offset), Offset(self.start))
            entry = self.history[offset]
            if isinstance(entry, Fence):
                view.fence_read(Offset(offset))
            elif isinstance(entry, Stranger):
                view.foreign_read(Offset(offset))
            else:
                assert view.entry_read(Offset(offset), entry) == self.effective[offset]
            assert view.next_offset == offset + 1
            offset = self.next_readable(offset + 1)


LogOwners.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=50)
TestLogOwners = LogOwners.TestCase
