"""What happened in a run, as the applications saw it: operations with their begin and end.

Nothing in this module knows Stilltide: a checker that reads a history judges any system that has
transactions, groups and acknowledgements.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Outcome = Literal["committed", "aborted", "unknown"]


class Place(NamedTuple):
    """A partition of a topic of one cluster."""

    cluster: str
    topic: str
    partition: int


class Write(NamedTuple):
    """A record that an application has sent. Values are unique in a history."""

    place: Place
    value: bytes


@dataclass
class Transaction:
    """A set of writes and acknowledgements that take effect together or not at all.

    Attributes:
        writes: what was sent; a write whose call failed is among them.
        acknowledged: group and value of each message that the transaction acknowledged.
        outcome: `aborted` until a commit is asked for, `unknown` until its answer.
        began_s, ended_s: virtual time; `ended_s` is None while the end was not told.
        is_plain: whether the writes are no transaction: each is there or not by itself.
        cluster: where it runs.
        prepared_s: when the application was told that the transaction is prepared: from then on
            nothing ends it but a decision.
        decisions: the decisions that somebody has asked for, of a transaction that is prepared.
        may_commit_s: before this time, nobody has asked for a commit of a transaction that is
            prepared.
        has_row: whether the commit of a database decides: all of the transaction is visible, if
            and only if its row stands in the end.
    """

    name: str
    began_s: float
    writes: list[Write] = field(default_factory=list[Write])
    acknowledged: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    outcome: Outcome = "aborted"
    ended_s: float | None = None
    is_plain: bool = False
    cluster: str = "a"
    prepared_s: float | None = None
    decisions: list[Outcome] = field(default_factory=list[Outcome])
    may_commit_s: float | None = None
    has_row: bool = False

    def asked(self, decision: Outcome, at_s: float) -> None:
        """Somebody asks for a decision."""
        self.decisions.append(decision)
        if decision == "committed" and self.may_commit_s is None:
            self.may_commit_s = at_s
            self.outcome = "unknown" if self.outcome == "aborted" else self.outcome

    def answered(self, decision: Outcome, at_s: float) -> None:
        """Somebody who has asked for a decision was told what stands."""
        if decision in self.decisions:
            self.outcome, self.ended_s = decision, self.ended_s or at_s


class Poll(NamedTuple):
    """A message that a member of a group got.

    Attributes:
        session: number that changes with each rebalance that the member was told of, and with
            each `Seek` of the member.
        given_s: when the member was given the message; `at_s` may be earlier: then its session had
            begun.
    """

    at_s: float
    group: str
    member: str
    session: int
    place: Place
    offset: int
    value: bytes
    given_s: float = math.inf


class Acknowledged(NamedTuple):
    """The group's progress was durable for a value, as the application was told at this time."""

    at_s: float
    group: str
    value: bytes
    cluster: str = "a"


class Seek(NamedTuple):
    """A member has asked to go on at another offset of a partition, and was not refused.

    Attributes:
        session: the session of the member that begins with the call.
        from_offset: what lies from here to `offset` is given up: nobody has to get it any more.
        offset: where the member goes on.
    """

    at_s: float
    group: str
    member: str
    session: int
    place: Place
    from_offset: int
    offset: int


class Rewind(NamedTuple):
    """A member has asked to commit a position to which it had gone back.

    From then on the group may get again what lies from the offset on.
    """

    at_s: float
    group: str
    place: Place
    offset: int


class Copying(NamedTuple):
    """The records of a topic appear once and in order in a partition of the same number.

    Attributes:
        source, target: cluster and topic.
        written: whether only what applications wrote to the source is copied, and no copy.
    """

    source: tuple[str, str]
    target: tuple[str, str]
    written: bool


class Exit(NamedTuple):
    """A process has ended by an error."""

    at_s: float
    process: str
    why: str


@dataclass
class History:
    """The history of one run.

    Attributes:
        seeks, rewinds: moves of members to other offsets.
        handled: group and value of each message that an application has acknowledged, whether or
            not the acknowledgement is durable.
        copies: the topics that are copied.
        asked: group and value of each message whose acknowledgement an application has asked for,
            whether or not there was an answer.
        calm_s: the time after which nothing goes wrong.
        ordered_groups: groups that commit positions, and so get each partition without holes.
        final: the records of each partition, as a reader sees them who begins when all is over:
            offset and value, in the order of reading.
        deleted: values that retention may have deleted, all of them passed by every group there,
            with the places and offsets at which they were deleted.
        gone: values of the logs of deleted topics, with offsets, and places that no other log has:
            nobody has to have them any more.
        dead: values of the dead letters of each group, in the end.
        told: names of transactions, with the outcomes that somebody was told who asked later, or
            asked for a decision.
        rows: names of the transactions whose rows stand in the database in the end, and when each
            row was committed.
        undecided: what is still prepared a minute after everything is well again.
        finished: whether everything that was to be done was done in time; if not, `unfinished`
            says what is missing.
    """

    copies: tuple[Copying, ...] = ()
    transactions: list[Transaction] = field(default_factory=list[Transaction])
    polls: list[Poll] = field(default_factory=list[Poll])
    acknowledged: list[Acknowledged] = field(default_factory=list[Acknowledged])
    seeks: list[Seek] = field(default_factory=list[Seek])
    rewinds: list[Rewind] = field(default_factory=list[Rewind])
    exits: list[Exit] = field(default_factory=list[Exit])
    final: dict[Place, list[tuple[int, bytes]]] = field(
        default_factory=dict[Place, list[tuple[int, bytes]]]
    )
    deleted: dict[bytes, dict[Place, int]] = field(default_factory=dict[bytes, dict[Place, int]])
    gone: dict[bytes, tuple[Place, int]] = field(default_factory=dict[bytes, tuple[Place, int]])
    dead: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])
    told: list[tuple[str, Outcome]] = field(default_factory=list[tuple[str, Outcome]])
    rows: dict[str, float] = field(default_factory=dict[str, float])
    undecided: list[str] = field(default_factory=list[str])
    handled: set[tuple[str, bytes]] = field(default_factory=set[tuple[str, bytes]])
    asked: set[tuple[str, bytes]] = field(default_factory=set[tuple[str, bytes]])
    calm_s: float = 0.0
    ordered_groups: set[str] = field(default_factory=set[str])
    unfinished: list[str] = field(default_factory=list[str])

    def may_lack(self, written: Write, place: Place) -> bool:
        """Whether a log may lack a record, or its copy, since it was deleted there or before.

        What is deleted on a cluster is copied from there to other topics no more.
        """
        clusters = {it.cluster for it in self.deleted.get(written.value, ())}
        return written.value in self.gone or not clusters.isdisjoint(
            (place.cluster, written.place.cluster)
        )

    def place_of(self, poll: Poll) -> Place:
        """Where a message was: a topic that was made again is another place."""
        place, _ = self.gone.get(poll.value, (poll.place, 0))
        return place

    def places_of(self, place: Place) -> list[Place]:
        """Where a record is at the end that an application writes to `place`."""
        places = [place]
        for copying in sorted(self.copies, key=lambda it: not it.written):
            origins = [place] if copying.written else places
            places += [
                Place(*copying.target, origin.partition)
                for origin in origins
                if (origin.cluster, origin.topic) == copying.source
            ]
        return places
