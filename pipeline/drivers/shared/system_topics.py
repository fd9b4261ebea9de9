"""Checks that system topics exist, and makes the error for a missing one."""

from collections.abc import Iterable, Mapping

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import TopicDescription


def require_topics(needed: Iterable[str], found: Mapping[str, TopicDescription]) -> None:
    """Raises `FatalError` for the first of `needed` that is not in `found`."""
    for topic in needed:
        if topic not in found:
            raise missing_topic(topic)


def missing_topic(topic: str) -> FatalError:
    """The error of a system topic that does not exist."""
    return FatalError(
        "the system topic does not exist",
        hint="start a worker for this cluster: `stilltide worker`",
        topic=topic,
    )
