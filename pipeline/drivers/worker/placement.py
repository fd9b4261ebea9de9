"""Defines which topic's assignment gives a worker which owners.

*Source*: docs/protocols B. Faust's assignment decides which worker runs an owner; the fence (B1)
keeps two owners from writing.

Faust assigns the partitions of the topics that agents read, which are the topics of requests. Its
assignor keeps equal numbers together among topics with equally many partitions: so coordinators and
stores have a topic of operators' requests each, with as many partitions as the topic of clients'
requests (C15). Controllers of groups have a topic of operators' requests alone (I14). Owners that
nobody asks follow the topic of snapshot writers. Data partitions are hashed to the partitions of
all these topics in the same way, so a worker that writes the snapshots of a data partition also
indexes the partition and controls its groups.
"""

from typing import NamedTuple

from stilltide.schemas import topics


class Placement(NamedTuple):
    """Where the owners of one kind run.

    Attributes:
        name: name of one owner in logs, and of the agent that reads the requests.
        title: name of all owners of this kind in the answer of the readiness probe.
        topic: the topic whose assignment counts: the worker that has partition n runs owner n.
        owns: system topics whose partition n belongs to owner n; they have as many partitions as
            `topic`.
        operator_topic: the topic of operators' requests to these owners, which only operators and
            workers may write (C15); it has as many partitions as `topic`. None: there is none.
        is_asked: whether `topic` holds requests to these owners; if not, they only follow its
            assignment.
    """

    name: str
    title: str
    topic: str
    owns: tuple[str, ...]
    is_asked: bool
    operator_topic: str | None = None


COORDINATORS = Placement(
    "coordinator",
    "coordinators",
    topics.TXN_REQUESTS,
    (topics.TXN_LOG,),
    is_asked=True,
    operator_topic=topics.OPERATOR_REQUESTS,
)

PENDING_ACK_STORES = Placement(
    "pending-ack",
    "pending-ack stores",
    topics.ACK_REQUESTS,
    (topics.PENDING_ACK_LOG,),
    is_asked=True,
    operator_topic=topics.OPERATOR_ACK_REQUESTS,
)

SNAPSHOT_WRITERS = Placement(
    "snapshots",
    "snapshot writers",
    topics.SNAPSHOT_REQUESTS,
    (topics.TXN_MARKERS, topics.TXN_SNAPSHOTS),
    is_asked=True,
)

CONTROLLERS = Placement(
    "replication",
    "replication controllers",
    topics.GROUP_REQUESTS,
    (topics.REPLICATION_MARKERS, topics.REPLICATION_POSITIONS),
    is_asked=True,
)

INDEXERS = Placement(
    "aborted-index",
    "indexers",
    SNAPSHOT_WRITERS.topic,
    (topics.ABORTED_INDEX,),
    is_asked=False,
)

LINKS = Placement("links", "links", SNAPSHOT_WRITERS.topic, (), is_asked=False)
"""The worker with partition n runs that part of each link which writes to partition n of
replication-positions (H12)."""

PUBLISHES = Placement("publish", "publishes", SNAPSHOT_WRITERS.topic, (), is_asked=False)
"""The worker that writes the snapshots of partition 0 of a publish's target runs the publish."""

PLACEMENTS = (
    COORDINATORS,
    PENDING_ACK_STORES,
    SNAPSHOT_WRITERS,
    CONTROLLERS,
    INDEXERS,
    LINKS,
    PUBLISHES,
)
