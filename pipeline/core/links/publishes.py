"""Which publishes may run on one cluster.

*Source*: docs/protocols H7.
*Invariants*: no record is copied round in a circle, and a topic holds the copies of one topic.

Refuses: a circle, named topic by topic; two publishes to one topic.
"""

from collections.abc import Iterable

from stilltide.pipeline.errors import PublishError
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.topics import PREFIX, is_topic_name

_KAFKAS_OWN = "__"


def check_publish(publish: PublishRoute, others: Iterable[PublishRoute]) -> None:
    """Passes a publish that may run beside the others (H7).

    Raises:
        PublishError: a name is not that of a topic of applications, the copies would come back to
            their source, or another publish writes to the same topic.
    """
    for topic in publish:
        if not is_topic_name(topic):
            raise PublishError(
                f"publish {publish} names {topic!r}, which is not a topic name",
                hint="for example orders and orders.committed",
            )
        if topic.startswith((PREFIX, _KAFKAS_OWN)):
            raise PublishError(
                f"publish {publish} names the system topic {topic}",
                detail=f"names that begin with `{PREFIX}` or `{_KAFKAS_OWN}` are not for data",
                hint="name topics of applications",
            )
    if publish.source == publish.target:
        raise PublishError(
            f"topic {publish.source} cannot be published to itself", hint="name another target"
        )
    others = [one for one in others if one != publish]
    circle = _circle(publish, others)
    if circle:
        raise PublishError(
            f"publish {publish} would copy records in a circle: {' -> '.join(circle)}",
            detail="each copy would be copied again, without end",
            hint="leave one of these publishes out; delete its target topic if it has begun",
        )
    for other in others:
        if other.target == publish.target:
            raise PublishError(
                f"topic {publish.target} would hold copies of {other.source} and of"
                f" {publish.source}",
                detail=f"publish {other} writes to it",
                hint="name another target",
            )


def _circle(publish: PublishRoute, others: Iterable[PublishRoute]) -> list[str]:
    """The topics of the shortest way from the publish's source back to it; empty: there is none."""
    following: dict[str, list[str]] = {}
    for source, target in others:
        following.setdefault(source, []).append(target)
    ways = [[publish.source, publish.target]]
    seen = {publish.target}
    for way in ways:  # grows while it is walked
        if way[-1] == publish.source:
            return way
        for topic in following.get(way[-1], ()):
            if topic not in seen:
                seen.add(topic)
                ways.append([*way, topic])
    return []
