"""How many processes, partitions and bytes a load needs, and which limit comes next.

*Source*: measurements; each factor names its command, docs/sizing.md says how well they predict.

*Invariants*: a pure function of the load. Every cluster takes the same share of the transactions,
and every record is copied to each other cluster. Factors are of one processor, of which `RESERVE`
stays free.
"""

from dataclasses import dataclass
from math import ceil

from stilltide.pipeline.errors import ConfigError

RESERVE = 0.5
"""Share of a processor, and of a bound, that is left for peaks and for what takes over."""

WORKER_US_OF_A_TRANSACTION = 69.0
"""Worker: what each transaction takes, however many share an entry (`make bench CASE=way`)."""

WORKER_US_OF_AN_ENTRY = 652.0
"""Worker: what the transactions that are open at once at one coordinator share (as above)."""

BROKER_US_OF_A_TRANSACTION = 18.0
"""Brokers: one replica of 10 records, log entries and outcomes, 256 open at once (as above)."""

LINK_US_OF_A_RECORD = 4.4
"""A link: one record of 100 bytes (`PARTITIONS=16 make bench CASE=replication`)."""

BROKER_US_OF_A_READ = 1.3
"""Brokers: a record that a link reads: broker a of `ROUNDS=3 make bench CASE=replication`, busy."""

BROKER_US_OF_A_COPY = 4.9
"""Brokers: one replica of a record that a link writes: broker b, as above."""

READER_US_OF_A_MARKER = 5.5
"""A reader: the marker of a data partition that it does not read (`make bench CASE=markers`)."""

WORKER_MS_OF_1000_PAIRS = 20.0
"""A worker: each second, for replicated pairs at rest (`PAIRS=10000 make bench CASE=scale`)."""

WORKER_MIB = 110.0
"""A worker without work (`PARTITIONS=5000 make bench CASE=scale`)."""

WORKER_MIB_OF_1000_PARTITIONS = 7.0
"""A worker: data partitions that have had transactions (as above)."""

WORKER_KIB_OF_AN_OPEN = 1.0
"""A worker: an open transaction (`OPEN=96000 FINISHED=100000 make bench CASE=recovery`)."""

WORKER_THREADS = 37
"""A worker without partitions of system topics (`make bench CASE=rest`)."""

WORKER_THREADS_OF_A_PARTITION = 4
"""A worker: each partition of system topics (as above)."""

MARKER_BYTES = 60
"""An outcome in `stilltide.txn-markers`, one replica."""

WORKER_STATE_MIB_MAX = 256
"""Default of `coordinator_state_mib_max`: beyond, a worker refuses to open transactions."""

COORDINATORS_MAX = PARTITIONS_MAX = 256
"""Bounds of the settings `coordinators` and `partitions`."""

_LEAST = 4
"""Defaults of both settings."""

_US, _MS, _KIB = 1e6, 1e3, 1024
_DAY_S = 86_400


@dataclass(frozen=True, kw_only=True)
class Load:
    """What all clusters together have to carry.

    Attributes:
        transactions_per_s: over all clusters; each takes the same share.
        partitions: data partitions, which every cluster has.
        groups: replicated consumer groups.
        clusters: each pair of them has two links.
        open_s: how long a transaction is open, seconds.
        records: of one transaction, about 100 bytes each.
        partitions_of_a_transaction: data partitions that one transaction writes to.
        partitions_of_a_group: data partitions that one group reads.
        replicas: of each partition.
        retention_s: how long markers are kept, the setting `marker_retention_ms`.

    Raises:
        ConfigError: a number is below its least value.
    """

    transactions_per_s: float
    partitions: int
    groups: int = 0
    clusters: int = 1
    open_s: float = 0.05
    records: int = 10
    partitions_of_a_transaction: int = 3
    partitions_of_a_group: int = 100
    replicas: int = 3
    retention_s: float = _DAY_S

    def __post_init__(self) -> None:
        least = {"groups": 0, "transactions_per_s": 0, "open_s": 0, "retention_s": 0}
        for name, value in vars(self).items():
            if not least.get(name, 1) <= value < float("inf"):
                raise ConfigError(
                    f"{name} = {value}: not a number of at least {least.get(name, 1)}",
                    hint="size a load that there can be",
                )

    @property
    def each_s(self) -> float:
        """Transactions a second of one cluster."""
        return self.transactions_per_s / self.clusters

    @property
    def records_s(self) -> float:
        """Records a second that are written in one cluster, without copies."""
        return self.each_s * self.records

    @property
    def markers_s(self) -> float:
        """Markers a second in one cluster."""
        return self.each_s * self.partitions_of_a_transaction

    @property
    def open_at_once(self) -> float:
        """Transactions of one cluster that are open at the same time."""
        return self.each_s * self.open_s

    @property
    def pairs(self) -> int:
        """Replicated pairs of a group and a partition; one cluster alone has none."""
        return self.groups * self.partitions_of_a_group if self.clusters > 1 else 0

    @property
    def link_processes(self) -> int:
        """Processes of each link that leaves a cluster."""
        if self.clusters == 1:
            return 0
        return ceil(self.records_s * LINK_US_OF_A_RECORD / _US / RESERVE)


@dataclass(frozen=True)
class Need:
    """How much of something each cluster needs.

    Attributes:
        what: its name.
        each: how much one cluster needs.
        most: the most there can be; None: no bound is known.
        why: what makes the number.
    """

    what: str
    each: float
    most: float | None
    why: str

    @property
    def used(self) -> float | None:
        """The share of the bound that is used; above 1: the load does not fit."""
        return None if self.most is None else self.each / self.most


def worker_us(open_at_once: float) -> float:
    """A worker's processor µs for a transaction, with so many open at once at one coordinator."""
    return WORKER_US_OF_A_TRANSACTION + WORKER_US_OF_AN_ENTRY / max(open_at_once, 1)


def worker_mib(partitions: float, open_at_once: float) -> float:
    """A worker's memory with so many data partitions and open transactions."""
    return (
        WORKER_MIB
        + partitions / 1000 * WORKER_MIB_OF_1000_PARTITIONS
        + open_at_once * WORKER_KIB_OF_AN_OPEN / _KIB
    )


def reader_s(markers: float) -> float:
    """A reader's processor seconds for markers of data partitions that it does not read."""
    return markers * READER_US_OF_A_MARKER / _US


def pairs_s(pairs: float) -> float:
    """A worker's processor seconds in each second for replicated pairs at rest."""
    return pairs / 1000 * WORKER_MS_OF_1000_PAIRS / _MS


def needs(load: Load) -> list[Need]:
    """What each cluster needs for the load."""
    workers, coordinators = _workers(load)
    serving = min(workers - 1, coordinators)
    return [
        *_of_coordinators(load, workers, coordinators),
        *_of_workers(load, serving),
        *_of_system_topics(load, workers, serving),
        *_of_brokers(load),
    ]


def _of_coordinators(load: Load, workers: int, coordinators: int) -> list[Need]:
    used_us = worker_us(load.open_at_once / coordinators)
    each_s = load.each_s / coordinators
    return [
        Need(
            "workers",
            workers,
            COORDINATORS_MAX / 2,
            f"{used_us:.0f} µs a transaction, {load.pairs} pairs, and one that takes over;"
            " two coordinators for each",
        ),
        Need("coordinators", coordinators, COORDINATORS_MAX, "two for each worker"),
        Need(
            "processor of a coordinator",
            each_s * used_us / _US,
            1,
            f"{each_s:.0f} transactions a second at each",
        ),
    ]


def _of_workers(load: Load, serving: int) -> list[Need]:
    """Of each of the workers that serve while one is dead."""
    open_each = load.open_at_once / serving
    return [
        Need(
            "open transactions of a worker, MiB",
            open_each * WORKER_KIB_OF_AN_OPEN / _KIB,
            WORKER_STATE_MIB_MAX * RESERVE,
            f"{load.open_at_once:.0f} open at once, for {load.open_s:g} s each",
        ),
        Need(
            "memory of a worker, MiB",
            worker_mib(load.partitions / serving, open_each),
            None,
            f"{load.partitions / serving:.0f} data partitions each",
        ),
    ]


def _of_system_topics(load: Load, workers: int, serving: int) -> list[Need]:
    wanted = max(_LEAST, 2 * workers, load.link_processes)
    partitions = min(wanted, PARTITIONS_MAX)
    # Partitions of a group are hashed over the system partitions; consumers read all their markers.
    group_s = reader_s(load.markers_s) * min(load.partitions_of_a_group / partitions, 1)
    return [
        Need(
            "partitions of system topics",
            wanted,
            PARTITIONS_MAX,
            "two for each worker, and one for each process of a link",
        ),
        Need(
            "threads of a worker",
            WORKER_THREADS + WORKER_THREADS_OF_A_PARTITION * ceil(partitions / serving),
            None,
            f"{partitions} partitions of system topics",
        ),
        Need(
            "consumers of a group, for markers alone",
            max(group_s / RESERVE, 1),
            load.partitions_of_a_group,
            f"{load.markers_s / partitions:.0f} markers a second in each system partition",
        ),
        Need(
            "processes of each link that leaves",
            load.link_processes,
            PARTITIONS_MAX,
            f"{load.records_s:.0f} records a second",
        ),
    ]


def _of_brokers(load: Load) -> list[Need]:
    others = load.clusters - 1
    copied_us = BROKER_US_OF_A_READ + BROKER_US_OF_A_COPY * load.replicas
    used_us = load.each_s * BROKER_US_OF_A_TRANSACTION * load.replicas
    kept_bytes = load.markers_s * load.retention_s * MARKER_BYTES * load.replicas
    return [
        Need(
            "processors of all brokers",
            (used_us + load.records_s * others * copied_us) / _US / RESERVE,
            None,
            f"{load.replicas} replicas, and {others} links out and in",
        ),
        Need(
            "markers that are kept, GiB",
            kept_bytes / _KIB**3,
            None,
            f"{load.retention_s / 3600:g} hours, {load.replicas} replicas",
        ),
    ]


def next_limit(rows: list[Need]) -> Need:
    """The bound of which the load uses the largest share."""
    return max(rows, key=lambda it: it.used or 0)


def _workers(load: Load) -> tuple[int, int]:
    """Workers and coordinators of a cluster; with more coordinators, fewer share an entry."""
    state_mib = load.open_at_once * WORKER_KIB_OF_AN_OPEN / _KIB
    workers = 2
    while True:
        coordinators = min(max(_LEAST, 2 * workers), COORDINATORS_MAX)
        used_us = worker_us(load.open_at_once / coordinators)
        busy = load.each_s * used_us / _US + pairs_s(load.pairs)
        least = max(ceil(busy / RESERVE), ceil(state_mib / (WORKER_STATE_MIB_MAX * RESERVE)), 1)
        if least < workers:
            return workers, coordinators
        workers = least + 1
