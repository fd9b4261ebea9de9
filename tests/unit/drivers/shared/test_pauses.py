"""Which partitions a reader does not fetch at the moment."""

from collections.abc import Iterable

from stilltide.pipeline.drivers.shared.log_scan import Pauses
from stilltide.schemas.values import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Asked:
    """A reader that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, set[TopicPartition]]] = []

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Pausing.pause`."""
        self.calls.append(("pause", set(partitions)))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Pausing.resume`."""
        self.calls.append(("resume", set(partitions)))


def test_only_changes_reach_the_reader():
    """What is paused already, or not paused, is not asked for again."""
    reader = Asked()
    pauses = Pauses(reader)
    pauses.apply(set())
    pauses.apply({A})
    pauses.apply({A})
    pauses.apply({B})
    assert reader.calls == [("pause", {A}), ("pause", {B}), ("resume", {A})]


def test_a_set_that_changes_later_is_compared_as_it_was():
    """The caller may go on to change the set that it has passed."""
    reader = Asked()
    pauses = Pauses(reader)
    wanted = {A}
    pauses.apply(wanted)
    wanted.discard(A)
    pauses.apply(wanted)
    assert reader.calls == [("pause", {A}), ("resume", {A})]


def test_a_forgotten_partition_is_not_resumed():
    """After a revocation, or another assignment, nothing is paused at the reader."""
    reader = Asked()
    pauses = Pauses(reader)
    pauses.apply({A, B})
    pauses.forget([A])
    pauses.apply({B})
    pauses.forget_all()
    pauses.apply(set())
    assert reader.calls == [("pause", {A, B})]
