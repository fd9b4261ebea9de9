"""What a world does, drawn from its seed before the run: operations of programs, and faults.

*Invariants*: a plan is plain data, so a failing plan can be made smaller by leaving parts out.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

End = Literal["commit", "abort", "leave", "raise", "late"]
Decision = Literal["commit", "abort"]
Mode = Literal["positions", "acknowledgements", "transactions"]

TOPICS = {"orders": 3, "payments": 2}
"""Topics that clients write to, with their partition counts; links copy them."""

CLUSTERS = ("a", "b", "c")
"""Names of clusters; a plan has the first of them."""

PUBLISHED = "orders-published"
"""Topic into which a publish copies `orders`."""

OUTPUT = "receipts"
"""Topic of the transactions of members."""

DATABASE = "orders-db"
"""Name of the database, which is one for all clusters."""


class Preparation(NamedTuple):
    """How a transaction is prepared, and who decides.

    Attributes:
        held_s: how long its program does nothing after it was prepared.
        ends: what the program itself asks for then: `commit`, `abort`, or nothing.
        holders: what each program that keeps the token asks for; empty: the token is not given on.
        is_late: whether the transaction is prepared when it times out.
        row: whether a row in the database decides, and what happens to its database transaction:
            the program commits it, leaves it by an exception, or rolls it back in silence.
    """

    held_s: float
    ends: Decision | Literal[""] = ""
    holders: tuple[Decision, ...] = ()
    is_late: bool = False
    row: Literal["commit", "raise", "rollback", ""] = ""


class Operation(NamedTuple):
    """One transaction, or plain writes, of a client.

    Attributes:
        number: number among the operations of the plan.
        writes: topic and partition of each write; None: the client chooses by key.
        pauses_s: virtual time before each write, and before the end.
        end: `late` commits when the transaction times out; `leave` goes on after that.
        is_plain: whether the writes are no transaction.
        preparation: None: the transaction is not prepared; else `end` says nothing.
    """

    number: int
    writes: tuple[tuple[str, int | None], ...]
    pauses_s: tuple[float, ...]
    end: End
    is_plain: bool = False
    preparation: Preparation | None = None


class Client(NamedTuple):
    """A program that writes: its operations, of which `width` are under way at a time.

    Attributes:
        direct_line: whether it asks coordinators by direct lines where there are some.
    """

    name: str
    operations: tuple[Operation, ...]
    width: int
    timeout_s: float
    cluster: str = CLUSTERS[0]
    direct_line: bool = False


class Reader(NamedTuple):
    """A member of a group.

    Attributes:
        mode: `positions` commits positions, `acknowledgements` acknowledges messages one by one or
            cumulatively, `transactions` acknowledges in transactions that also write.
        stay_s: how long the member stays until it leaves and joins again; 0: for good.
        timeout_s: time-out of its transactions.
        undecided_max: the limit of records behind an undecided one.
        deliveries_max: deliveries after which a message moves to the dead letters; 0: never.
        moves: when the member leaves its cluster, and for which other one.
        is_cumulative: whether the member lays messages aside, and acknowledges several by one call.
        seeks: whether the member goes back and forward in its partitions now and then.
        prepares: whether the member prepares a part of its transactions.
    """

    name: str
    group: str
    topics: tuple[str, ...]
    mode: Mode
    cluster: str = CLUSTERS[0]
    stay_s: float = 0.0
    timeout_s: float = 8.0
    undecided_max: int = 10_000
    deliveries_max: int = 0
    moves: tuple[tuple[float, str], ...] = ()
    is_cumulative: bool = False
    seeks: bool = False
    prepares: bool = False

    @property
    def dead_letters(self) -> tuple[str, ...]:
        """The topics of the dead letters of its group."""
        return tuple(f"{it}-{self.group}-DLQ" for it in self.topics if self.deliveries_max)


class Link(NamedTuple):
    """A program that copies: from cluster to cluster, or, with one cluster, a publish.

    Attributes:
        source, target: clusters; the same for a publish of `orders`.
        shared: whether the workers of the target share the link; the program rests then.
    """

    name: str
    source: str
    target: str
    shared: bool = False


class Act(NamedTuple):
    """One thing that another program does.

    Attributes:
        at_s: virtual time of its begin.
        kind: what; the modules of `workload` know the kinds.
        number: number among the acts of the program.
        writes: topics and partitions that are concerned.
        for_s: how long it lasts.
    """

    at_s: float
    kind: str
    number: int
    writes: tuple[tuple[str, int], ...] = ()
    for_s: float = 0.0


class Other(NamedTuple):
    """A program that is neither client nor reader."""

    name: str
    role: Literal["native", "stranger", "operator"]
    acts: tuple[Act, ...]
    cluster: str = CLUSTERS[0]


class Deciding(NamedTuple):
    """A program that decides how prepared transactions end, as long as the world lasts.

    Attributes:
        role: `holder` has tokens that others have prepared; `resolver` asks the database;
            `operator` decides, with a reason, what nobody else decides.
        number: number among the programs of its role and cluster.
        after_s: how long transactions have been prepared that it decides.
    """

    role: Literal["holder", "resolver", "operator"]
    cluster: str
    number: int
    after_s: float

    @property
    def name(self) -> str:
        """The name of the program."""
        return f"{self.cluster}-{self.role}-{self.number}"


class Fault(NamedTuple):
    """Something that goes wrong.

    Attributes:
        at_s: virtual time of its begin.
        kind: `kill`, `freeze`, `cut`, `mute` (requests arrive, answers do not), `deaf` (the other
            way round), `slow`, `jump` (the wall clock of the process is two hours wrong), `down`
            (the brokers of a cluster), `lose` (a delivery report), `err` (a wrong assignment of
            workers), `rebalance`, `blind` (no record of `topic` arrives), `full` (a topic takes no
            records, as without enough replicas, and is read as before), `crash` (of the database,
            which is away for a while).
        target: a program; of `down`, `err` and `rebalance` a cluster; of `lose` and `full` a topic.
        cluster: the cluster, or the database, of which a program is cut off; or the cluster in
            which a report is lost.
        for_s: how long; of a kill: until the program runs again.
        topic: the fault waits until a record of the program has been appended to this topic, or is
            on its way there as one of a set, or a statement of this name has been carried out in
            the database; of `blind`: see there.
        of: the fault waits for a record of this program instead.
        after_s: time from that record to the fault.
    """

    at_s: float
    kind: str
    target: str
    for_s: float
    cluster: str = CLUSTERS[0]
    topic: str = ""
    of: str = ""
    after_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """One world.

    Attributes:
        workers: workers of each cluster.
    """

    seed: int
    clusters: tuple[str, ...]
    workers: int
    coordinators: int
    partitions: int
    clients: tuple[Client, ...]
    readers: tuple[Reader, ...]
    links: tuple[Link, ...]
    others: tuple[Other, ...]
    faults: tuple[Fault, ...]
    snapshot_changes_max: int
    snapshot_interval_ms: int
    marker_retention_ms: int
    deciding: tuple[Deciding, ...] = ()

    def without(self, faults: tuple[Fault, ...]) -> "Plan":
        """The same world with these faults only."""
        return replace(self, faults=faults)


FAULTS_END_S = 20.0
"""Virtual time after which nothing goes wrong any more."""
