"""The name of a publish: a link within one cluster, from a topic to a topic of committed records.

*Source*: docs/protocols H7. The name stands in the keys of buckets and in transactional ids where
other links have the name of their source cluster. No cluster's and no topic's name has a colon.

Refuses nothing: any other name is that of a cluster.
"""

from typing import NamedTuple

from stilltide.schemas.topics import is_topic_name
from stilltide.schemas.values import ClusterName

_BEGINNING = "publish"


class PublishRoute(NamedTuple):
    """A topic whose committed records are copied, and the topic of the copies."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}:{self.target}"

    @property
    def link(self) -> ClusterName:
        """The name of the link."""
        return ClusterName(f"{_BEGINNING}:{self}")


def publish_of(link: ClusterName) -> PublishRoute | None:
    """The publish of a link's name; None: the name is that of a cluster."""
    beginning, *topics = link.split(":")
    if beginning != _BEGINNING or len(topics) != len(PublishRoute._fields):
        return None
    return PublishRoute(*topics) if all(map(is_topic_name, topics)) else None
