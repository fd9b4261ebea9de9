"""Which publishes may run on one cluster (H7)."""

import pytest

from stilltide.pipeline.core.links.publishes import check_publish
from stilltide.pipeline.errors import PublishError
from stilltide.schemas.replication.origins import PublishRoute


def publishes(text: str) -> list[PublishRoute]:
    """From `a:b c:d`."""
    return [PublishRoute(*pair.split(":")) for pair in text.split()]


@pytest.mark.parametrize("others", ["", "a:b", "b:c c:d", "x:a", "a:c", "c:d d:c"])
def test_a_publish_may_run_beside_others(others: str):
    """Also beside itself, behind another, in front of another, and beside a circle of others."""
    check_publish(PublishRoute("a", "b"), publishes(others))


@pytest.mark.parametrize(
    ("others", "circle"),
    [
        ("b:a", "a -> b -> a"),
        ("b:c c:a", "a -> b -> c -> a"),
        ("b:c c:d d:c b:e e:a", "a -> b -> e -> a"),
    ],
)
def test_a_circle_is_named(others: str, circle: str):
    """Topic by topic, from the publish that is refused; a circle of others is left out."""
    with pytest.raises(PublishError) as caught:
        check_publish(PublishRoute("a", "b"), publishes(others))
    assert str(caught.value).splitlines()[0].endswith(f"in a circle: {circle}")


def test_a_topic_is_not_published_to_itself():
    """The shortest circle."""
    with pytest.raises(PublishError, match="topic a cannot be published to itself"):
        check_publish(PublishRoute("a", "a"), [])


def test_a_topic_holds_the_copies_of_one_topic():
    """The error names both sources and the target."""
    with pytest.raises(PublishError, match="topic b would hold copies of c and of a"):
        check_publish(PublishRoute("a", "b"), publishes("c:b"))


@pytest.mark.parametrize(
    ("publish", "named"),
    [
        (PublishRoute("stilltide.txn-log", "b"), "system topic stilltide.txn-log"),
        (PublishRoute("a", "stilltide.b"), "system topic stilltide.b"),
        (PublishRoute("a", "__consumer_offsets"), "system topic __consumer_offsets"),
        (PublishRoute("a", "b c"), "'b c', which is not a topic name"),
        (PublishRoute("", "b"), "'', which is not a topic name"),
    ],
)
def test_topics_that_are_not_those_of_applications_are_refused(publish: PublishRoute, named: str):
    """The error names the topic."""
    with pytest.raises(PublishError) as caught:
        check_publish(publish, [])
    assert named in str(caught.value)
