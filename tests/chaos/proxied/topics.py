"""The topics of the scenarios, and the groups that read them."""

from typing import Literal, NamedTuple

TOPICS = ("orders", "payments")
"""Topics that writers write to, on both clusters; links copy them."""

OUTPUT = "receipts"
"""Topic of the transactions that consume, transform and produce; on the first cluster."""

PUBLISHED = "payments.committed"
"""Topic to which a publish copies `payments`; on the first cluster."""

PARTITIONS = 3
FIRST, SECOND = "a", "b"
"""The clusters: three brokers, and one."""

Mode = Literal["positions", "acknowledgements", "transactions"]


class Group(NamedTuple):
    """A group, and how its members say what they have read.

    Attributes:
        topics: what it reads.
        moves: whether it goes from cluster to cluster.
    """

    name: str
    mode: Mode
    topics: tuple[str, ...] = TOPICS
    moves: bool = False


COPIERS = Group("copiers", "transactions", ("payments",))
GROUPS = (
    Group("readers", "positions"),
    Group("members", "acknowledgements"),
    COPIERS,
    Group("movers", "positions", ("orders",), moves=True),
    Group("walkers", "acknowledgements", ("payments",), moves=True),
)
BY_NAME = {group.name: group for group in GROUPS}
