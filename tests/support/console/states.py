"""States that the pages of the console are looked at in."""

from dataclasses import replace
from math import sin
from typing import Any

from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.status.samples import EVERY_MS, Samples
from stilltide.pipeline.core.status.values import (
    LISTED_MAX,
    TIME_OUT,
    Aged,
    AuditStatus,
    BrokersStatus,
    ClusterSeen,
    CoordinatorStatus,
    GroupPartition,
    GroupStatus,
    IndexStatus,
    LinkPartition,
    LinkStatus,
    OldestTransaction,
    ReaderHold,
    SnapshotStatus,
    SystemStatus,
    TransactionsStatus,
    WorkerStatus,
)
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition
from tests.support.hostile import HOSTILE
from tests.support.status.samples import AWAY, HOLD, NOW_MS, WELL, A, B, cluster, group, link

OPEN_COUNT = 10_000
ABORTED_COUNT = 100_000
TOPICS = ("orders", "payments", "shipments", "returns", "invoices")
C = ClusterName("c")
CAUSES = ("its client", TIME_OUT, "an operator")


def _transaction(number: int, client: str = "shop:9ebc67f2175d512b8da5") -> OldestTransaction:
    state = ("OPEN", "OPEN", "OPEN", "COMMITTING", "ABORTING")[number % 5]
    opened_ms = NOW_MS - 95_000 + 900 * number
    by = "an operator" if state == "ABORTING" else ""
    return OldestTransaction(
        f"{number % 4}:{7000 + number}", state, opened_ms, 300_000, client, 1 + number % 7, by
    )


def _hold(number: int, topic: str, **changed: object) -> ReaderHold:
    since_ms = NOW_MS - 95_000 + 1700 * number
    here = {
        "data": TopicPartition(topic, number),
        "offset": Offset(1_203_117 + 977 * number),
        "behind": 4210 // (number + 1),
        "holder": f"{number % 4}:{7000 + number}",
        "client": "shop:9ebc67f2175d512b8da5",
        "since_ms": since_ms,
    }
    return HOLD._replace(**here | changed)


def _holds() -> tuple[ReaderHold, ...]:
    hanging = _hold(
        4, "payments", native=True, holder="producer 4711, epoch 3", client="", hanging=True
    )
    native = _hold(5, "invoices", native=True, holder="invoicer-2", client="")
    return (hanging, *(_hold(it, "orders") for it in range(3)), native)


def _busy_cluster(name: ClusterName) -> ClusterSeen:
    transactions = TransactionsStatus(
        OPEN_COUNT,
        31,
        4,
        _transaction(0),
        (),
        tuple(_transaction(number) for number in range(LISTED_MAX)),
        {f"2:{6900 - number}": CAUSES[number % 3] for number in range(2, 40, 4)},
    )
    snapshots = tuple(
        SnapshotStatus(
            TopicPartition(topic, number),
            EndOffset(1_200_000 + 311 * number),
            27 + number,
            3,
            1_204_224,
            ABORTED_COUNT // 60,
            NOW_MS - 5000,
            "",
        )
        for topic in TOPICS
        for number in range(12)
    )
    index = tuple(
        IndexStatus(TopicPartition("invoices", number), EndOffset(88_100), 17 * number, 300, "")
        for number in range(12)
    )
    workers = tuple(
        WorkerStatus(f"m-{it}", f"10.0.0.{5 + it}", "0.2.0", (2 * it, 2 * it + 1))
        for it in range(2)
    )
    return replace(
        cluster(name),
        address=f"kafka-{name}-0:9092,kafka-{name}-1:9092,kafka-{name}-2:9092",
        brokers=Aged(BrokersStatus(3, 3), NOW_MS - 400),
        workers=Aged(workers, NOW_MS - 1200),
        coordinators=Aged(
            tuple(CoordinatorStatus(it, serving=True) for it in range(4)), NOW_MS - 1200
        ),
        ended=Aged((), NOW_MS - 1200),
        transactions=Aged(transactions, NOW_MS - 1200),
        holds=Aged(_holds() if name == A else (), NOW_MS - 1200),
        snapshots=Aged(snapshots, NOW_MS - 4300),
        index=Aged(index, NOW_MS - 8100),
    )


def _busy_link(source: str, target: ClusterName) -> LinkStatus:
    partitions = tuple(
        LinkPartition(
            TopicPartition(topic, number), EndOffset(1_199_000 + number), 13 * number % 40
        )
        for topic in TOPICS
        for number in range(12)
    )
    past = {"last_error": "orders: no broker of a answered", "last_error_ms": NOW_MS - 3_600_000}
    return link(source, target)._replace(
        beat_ms=NOW_MS - 800,
        partitions=partitions,
        rate=1204.4,
        **past if source == "b" else {},
    )


def _busy_group(at: ClusterName, topic: str, name: str) -> GroupStatus:
    reads = at == A
    standing = Standing.ACTIVE if reads else Standing.AT_THE_PREFIX
    partitions = tuple(
        GroupPartition(
            number,
            Offset(1_198_900 + 7 * number),
            EndOffset(1_199_000 + 7 * number),
            standing,
            0 if reads else number,
            4 * number,
            "nothing",
            urgent=False,
        )
        for number in range(6)
    )
    return group(at)._replace(
        topic=topic, group=name, active=reads, partitions=partitions, read_ms=NOW_MS - 2600
    )


BUSY = SystemStatus(
    NOW_MS,
    tuple(map(_busy_cluster, (A, B, C))),
    {
        A: Aged((_busy_link("b", A), _busy_link("c", A)), NOW_MS - 900),
        B: Aged((_busy_link("a", B),), NOW_MS - 900),
        C: Aged((_busy_link("a", C),), NOW_MS - 900),
    },
    Aged(
        tuple(
            _busy_group(at, topic, name)
            for topic, name in zip(
                TOPICS, ("billing", "fraud", "packing", "refunds", "ledger"), strict=True
            )
            for at in (A, B, C)
        ),
        NOW_MS - 2600,
    ),
    {
        "/reports/orders": Aged(
            AuditStatus("valid", 0, ("orders", "payments"), NOW_MS - 3_600_000), NOW_MS - 3000
        ),
        "/reports/invoices": Aged(
            AuditStatus("invalid", 3, ("invoices",), NOW_MS - 600_000), NOW_MS - 3000
        ),
    },
)
"""Three clusters with 10 000 open and 100 000 aborted transactions each, and readers that wait."""


def _moved(part: Aged[Any], by_ms: int) -> Aged[Any]:
    return replace(part, read_ms=None if part.read_ms is None else part.read_ms - by_ms)


def _earlier(status: SystemStatus, number: int) -> SystemStatus:
    """The state before so many samples, with figures that rise and fall; cluster c was away."""
    by_ms = number * EVERY_MS
    wave = 1 + sin(number / 9) * 0.6 + sin(number / 2) * 0.15
    clusters: list[ClusterSeen] = []
    for at, now in enumerate(status.clusters):
        counts = (
            CoordinatorStatus(
                it,
                True,
                "",
                Offset(7),
                10**6 - 900 * number - round(3000 * sin(number / 8)),
                10**5 - 90 * number - round(500 * sin(number / 5)),
            )
            for it in range(4)
        )
        opened = now.transactions.value
        assert opened is not None
        oldest = opened.oldest and opened.oldest._replace(
            opened_ms=status.now_ms - by_ms - round(40_000 * wave)
        )
        changed = opened._replace(open_count=round(opened.open_count * wave), oldest=oldest)
        parts: dict[str, Aged[Any]] = {name: _moved(part, by_ms) for name, part in now.parts()}
        parts["coordinators"] = Aged(tuple(counts), status.now_ms - by_ms)
        parts["transactions"] = replace(parts["transactions"], value=changed)
        if at == 2 and 60 < number < 90:
            parts["brokers"] = AWAY
        clusters.append(replace(now, **parts))
    groups = (it._replace(read_ms=(it.read_ms or 0) - by_ms) for it in status.groups.value or ())
    return replace(
        status,
        now_ms=status.now_ms - by_ms,
        clusters=tuple(clusters),
        links={name: _moved(links, by_ms) for name, links in status.links.items()},
        groups=Aged(tuple(groups), status.now_ms - by_ms),
    )


def half_hour(status: SystemStatus, count: int = 181) -> Samples:
    """Samples of the last half hour, up to this state."""
    samples = Samples()
    for number in reversed(range(count)):
        samples.add(_earlier(status, number))
    return samples


EMPTY = SystemStatus(
    NOW_MS,
    (
        replace(
            cluster(A),
            workers=Aged((), NOW_MS),
            coordinators=Aged((), NOW_MS),
            transactions=Aged(TransactionsStatus(0, 0, 0, None, ()), NOW_MS),
            snapshots=Aged((), NOW_MS),
            index=Aged((), NOW_MS),
        ),
    ),
    {A: Aged((), NOW_MS)},
    Aged((), NOW_MS),
)
"""A cluster that nobody uses yet."""

UNREAD = SystemStatus(NOW_MS, (ClusterSeen(A, "a:9092"),), {A: Aged()}, Aged(), {"r": Aged()})
"""Nothing was read so far."""

_ONCE_MS = NOW_MS - 190_000


def _away_b() -> ClusterSeen:
    """Cluster b, which has answered three minutes ago, and does not any more."""
    once = cluster(B)
    aged = {name: replace(part, read_ms=_ONCE_MS) for name, part in once.parts()}
    problem = replace(aged["brokers"], problem=AWAY.problem, hint=AWAY.hint)
    return replace(replace(once, **{**aged, "brokers": problem}), sign_ms=_ONCE_MS)


def _nobody_knows(links: Aged[tuple[LinkStatus, ...]]) -> Aged[tuple[LinkStatus, ...]]:
    """Links from or to b, which is away."""
    value = tuple(it._replace(running=None, away="b") for it in links.value or ())
    return replace(links, value=value)


CLUSTER_AWAY = replace(
    WELL,
    clusters=(cluster(A), _away_b()),
    links={name: _nobody_knows(links) for name, links in WELL.links.items()},
    groups=Aged((group(A), group(B)._replace(read_ms=_ONCE_MS, problem="b is away")), NOW_MS),
)
"""One of two clusters has gone; what was read of it before is still shown."""

ALL_AWAY = SystemStatus(
    NOW_MS,
    (ClusterSeen(A, "10.1.2.3:9092", AWAY), ClusterSeen(B, "10.1.2.4:9092", AWAY)),
    {A: Aged(), B: Aged()},
)
"""No cluster was ever reached."""


def _hostile() -> SystemStatus:
    """Every name that a stranger chooses is markup, a control character or very long."""
    names = list(HOSTILE.values())
    holds = tuple(
        _hold(number, name, holder=name, client=f"{name}:{name}")
        for number, name in enumerate(names)
    )
    listed = tuple(_transaction(number, name) for number, name in enumerate(names))
    open_now = TransactionsStatus(len(names), 0, 0, listed[0], (), listed)
    stuck = group(A, why=names[0], urgent=True, standing=Standing.BEYOND_THE_END)
    groups = tuple(stuck._replace(topic=name, group=name, problem=name) for name in names)
    snapshot = SnapshotStatus(TopicPartition(names[0], 0), None, None, 0, 0, None, None, names[1])
    changed = replace(
        cluster(A),
        address=names[0],
        workers=Aged((WorkerStatus("m", names[0], names[1], ()),), NOW_MS, names[0], names[1]),
        transactions=Aged(open_now, NOW_MS),
        holds=Aged(holds, NOW_MS),
        snapshots=Aged((snapshot,), NOW_MS, names[0], names[1]),
    )
    bad = link(names[0], A)._replace(problem=names[1])
    failed = bad._replace(problem="", last_error=names[0], last_error_ms=NOW_MS - 9000)
    stopped = failed._replace(running=False, last_error=names[1], last_error_hint=names[2])
    return replace(
        WELL,
        clusters=(changed, replace(cluster(B), name=ClusterName(names[0]))),
        links={A: Aged((bad, failed, stopped), NOW_MS), ClusterName(names[0]): Aged((), NOW_MS)},
        groups=Aged(groups, NOW_MS),
        audits={name: Aged(AuditStatus(name, 1, (name,), 0), NOW_MS, name) for name in names},
    )


HOSTILE_NAMES = _hostile()

STATES = {
    "well": WELL,
    "empty": EMPTY,
    "unread": UNREAD,
    "busy": BUSY,
    "cluster away": CLUSTER_AWAY,
    "all away": ALL_AWAY,
    "hostile names": HOSTILE_NAMES,
}
