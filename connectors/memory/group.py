"""A consumer group of the memory broker: its offsets, members and assignments.

*Source*: connectors.ports, `GroupReader`; Kafka's range assignor and eager rebalancing.

*Invariants*: a rebalance revokes every partition of every member before it assigns any.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from stilltide.connectors.ports.connector import MemberDescription
from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.values import TopicPartition


class Member(Protocol):
    """The interface of a group's member.

    Attributes:
        client_id: the member's name for itself.
    """

    client_id: str

    @property
    def member_id(self) -> str:
        """The member's id, which no other member of any group has."""
        ...

    @property
    def topics(self) -> Sequence[str]:
        """The member's subscribed topics."""
        ...

    def take_back(self) -> None:
        """Revokes all partitions of the member."""
        ...

    def give(self, partitions: Sequence[TopicPartition]) -> None:
        """Assigns these partitions to the member."""
        ...

    def join_again(self) -> None:
        """Joins the group again after the member was removed from it, unless it was closed."""
        ...


class Group:
    """One group.

    Attributes:
        committed: the group's commits.
        shared: the partitions that the last rebalance has shared out.
    """

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, Committed] = {}
        self.shared: set[TopicPartition] = set()
        self._members: list[Member] = []
        self._given: dict[str, tuple[TopicPartition, ...]] = {}

    @property
    def is_active(self) -> bool:
        """Whether the group has members."""
        return bool(self._members)

    @property
    def member_ids(self) -> set[str]:
        """Ids of the members."""
        return {member.member_id for member in self._members}

    @property
    def described(self) -> list[MemberDescription]:
        """The members, by id."""
        return [
            MemberDescription(
                member.member_id,
                member.client_id,
                "127.0.0.1",
                self._given.get(member.member_id, ()),
            )
            for member in sorted(self._members, key=lambda member: member.member_id)
        ]

    def forget(self, topic: str) -> None:
        """Drops the commits in a topic that was deleted."""
        self.committed = {data: it for data, it in self.committed.items() if data.topic != topic}

    def join(self, member: Member) -> None:
        """Adds a member; the caller rebalances."""
        self._members.append(member)

    def leave(self, member: Member) -> bool:
        """Removes a member; the caller rebalances. False if `member` was not in the group."""
        if member not in self._members:
            return False
        self._members.remove(member)
        return True

    def remove_members(self) -> list[Member]:
        """Removes all members, and returns them; the caller lets them join again."""
        members, self._members = self._members, []
        for member in members:
            member.take_back()
        return members

    def rebalance(self, partitions_of: Callable[[Iterable[str]], list[TopicPartition]]) -> None:
        """Assigns all partitions again, without regard to the former assignment."""
        for member in self._members:
            member.take_back()
        shares: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for topic in sorted({topic for member in self._members for topic in member.topics}):
            takers = [i for i, member in enumerate(self._members) if topic in member.topics]
            for taker, share in zip(
                takers, _ranges(partitions_of([topic]), len(takers)), strict=True
            ):
                shares[taker].extend(share)
        self.shared = {data for share in shares.values() for data in share}
        self._given = {
            member.member_id: tuple(sorted(shares[i])) for i, member in enumerate(self._members)
        }
        for i, member in enumerate(self._members):
            member.give(shares[i])


def _ranges(partitions: Sequence[TopicPartition], count: int) -> list[Sequence[TopicPartition]]:
    """A contiguous share for each of `count` members; shares differ in length by one at most."""
    least, more = divmod(len(partitions), count)
    starts = [i * least + min(i, more) for i in range(count + 1)]
    return [partitions[starts[i] : starts[i + 1]] for i in range(count)]
