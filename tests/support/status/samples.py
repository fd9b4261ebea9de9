"""A state of two clusters in which everything is well, to be changed by tests."""

from dataclasses import replace
from typing import Any

from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.status.values import (
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

NOW_MS = 1_700_000_000_000
DATA = TopicPartition("orders", 0)
A, B = ClusterName("a"), ClusterName("b")

HOLD = ReaderHold(
    DATA,
    Offset(117),
    behind=40,
    native=False,
    holder="3:302",
    client="shop:9ebc67f2175d512b8da59985e8395d23",
    since_ms=NOW_MS - 125_000,
    hanging=False,
)
NATIVE_HOLD = HOLD._replace(native=True, holder="payments", client="", hanging=False)


def cluster(name: ClusterName) -> ClusterSeen:
    """A cluster where everything is well."""
    return ClusterSeen(
        name,
        f"{name}:9092",
        Aged(BrokersStatus(3, 3), NOW_MS),
        Aged((WorkerStatus("m-1", "10.0.0.5", "0.2.0", (0, 1)),), NOW_MS),
        Aged((CoordinatorStatus(0, serving=True), CoordinatorStatus(1, serving=True)), NOW_MS),
        Aged((), NOW_MS),
        Aged(
            TransactionsStatus(
                2, 1, 0, OldestTransaction("0:7", "OPEN", NOW_MS - 3000, 60_000, "", 1), ()
            ),
            NOW_MS,
        ),
        Aged((), NOW_MS),
        Aged((SnapshotStatus(DATA, EndOffset(90), 27, 1, 320, 4, NOW_MS - 5000, ""),), NOW_MS),
        Aged((IndexStatus(DATA, EndOffset(100), 17, 3, ""),), NOW_MS),
        Aged((), NOW_MS),
    )


def link(source: str, target: ClusterName) -> LinkStatus:
    """A link that runs."""
    copied = (LinkPartition(DATA, EndOffset(100), 3), LinkPartition(DATA, EndOffset(9), 0))
    return LinkStatus(source, target, NOW_MS - 4000, running=True, partitions=copied)


def group(at: ClusterName, **changed: Any) -> GroupStatus:
    """A group that is in sync."""
    one = GroupPartition(
        0, Offset(50), EndOffset(117), Standing.AT_THE_PREFIX, 0, 2, "nothing", urgent=False
    )
    return GroupStatus(
        "orders", "billing", at, active=False, partitions=(one._replace(**changed),), read_ms=NOW_MS
    )


WELL = SystemStatus(
    NOW_MS,
    (cluster(A), cluster(B)),
    {A: Aged((link("b", A),), NOW_MS), B: Aged((link("a", B),), NOW_MS)},
    Aged((group(A), group(B)), NOW_MS),
    {"reports": Aged(AuditStatus("valid", 0, ("orders",), NOW_MS - 60_000), NOW_MS)},
)


def with_a(**changed: Any) -> SystemStatus:
    """The same state with other parts of cluster a."""
    return replace(WELL, clusters=(replace(cluster(A), **changed), cluster(B)))


AWAY = Aged[BrokersStatus](None, None, "no answer within 2 s", "check that the broker runs")
