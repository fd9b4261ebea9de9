"""A consumer group of the memory broker: its offsets, its members, and who has what.

*Source*: connectors.ports, `GroupReader`; Kafka's range assignor and eager rebalancing.

*Invariants*: a rebalance takes everything back from every member before it gives anything.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.values import TopicPartition


class Member(Protocol):
    """What a group asks of a member."""

    @property
    def topics(self) -> Sequence[str]:
        """What it has subscribed to."""
        ...

    def take_back(self) -> None:
        """It has no partition any more."""
        ...

    def give(self, partitions: Sequence[TopicPartition]) -> None:
        """These are its partitions."""
        ...


class Group:
    """One group."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, Committed] = {}
        self._members: list[Member] = []

    @property
    def is_active(self) -> bool:
        """Whether it has members."""
        return bool(self._members)

    def join(self, member: Member) -> None:
        """Adds a member; the caller rebalances."""
        self._members.append(member)

    def leave(self, member: Member) -> bool:
        """Removes a member; the caller rebalances. False when it was none."""
        if member not in self._members:
            return False
        self._members.remove(member)
        return True

    def rebalance(self, partitions_of: Callable[[Iterable[str]], list[TopicPartition]]) -> None:
        """Deals all partitions out anew, whoever had them before."""
        for member in self._members:
            member.take_back()
        shares: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for topic in sorted({topic for member in self._members for topic in member.topics}):
            takers = [i for i, member in enumerate(self._members) if topic in member.topics]
            for taker, share in zip(
                takers, _ranges(partitions_of([topic]), len(takers)), strict=True
            ):
                shares[taker].extend(share)
        for i, member in enumerate(self._members):
            member.give(shares[i])


def _ranges(partitions: Sequence[TopicPartition], count: int) -> list[Sequence[TopicPartition]]:
    """A contiguous share for each of `count` members, the first ones longer by one at most."""
    least, more = divmod(len(partitions), count)
    starts = [i * least + min(i, more) for i in range(count + 1)]
    return [partitions[starts[i] : starts[i + 1]] for i in range(count)]
