"""Reads and moves offsets of the memory broker's consumer groups from outside of the groups.

*Source*: connectors.ports.groups, `GroupAdmin`.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping

from stilltide.connectors.commit_check import check_metadata
from stilltide.connectors.errors import ActiveGroupError, FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.groups import MemberDescription
from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.values import TopicPartition

HEARTBEAT_S = 0.05
"""After this time a member that was removed from its group joins again."""


class MemoryGroupAdmin:
    """A `GroupAdmin`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def committed(
        self, groups: Collection[str], partitions: Collection[TopicPartition]
    ) -> dict[str, dict[TopicPartition, Committed]]:
        """The offsets that groups have committed; see `GroupAdmin.committed`."""
        self._broker.check_up()
        held = {group: self._broker.group(group).committed for group in groups}
        return {
            group: {data: found[data] for data in partitions if data in found}
            for group, found in held.items()
        }

    async def topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """The topics that exist; see `GroupAdmin.topics`."""
        self._broker.check_up()
        held = self._broker.topics
        return {name: held[name].description for name in names if name in held}

    async def listed(self) -> set[str]:
        """The groups with members or commits; see `GroupAdmin.listed`."""
        self._broker.check_up()
        found = self._broker.groups.items()
        return {name for name, group in found if group.is_active or group.committed}

    async def commits_of(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, Committed]]:
        """Everything that groups have committed; see `GroupAdmin.commits_of`."""
        self._broker.check_up()
        return {group: dict(self._broker.group(group).committed) for group in groups}

    async def topics_of(self, groups: Iterable[str]) -> dict[str, set[str]]:
        """The topics of which groups have committed offsets; see `GroupAdmin.topics_of`."""
        commits = await self.commits_of(groups)
        return {group: {data.topic for data in held} for group, held in commits.items()}

    async def active(self, groups: Collection[str]) -> set[str]:
        """The groups that have members; see `GroupAdmin.active`."""
        self._broker.check_up()
        return {group for group in groups if self._broker.group(group).is_active}

    async def members(self, group: str) -> set[str]:
        """Ids of the group's members; see `GroupAdmin.members`."""
        self._broker.check_up()
        return self._broker.group(group).member_ids

    async def described_members(self, group: str) -> list[MemberDescription]:
        """The group's members; see `GroupAdmin.described_members`."""
        self._broker.check_up()
        return self._broker.group(group).described

    async def remove_members(self, group: str) -> None:
        """Removes all members, which join again soon; see `GroupAdmin.remove_members`."""
        self._broker.check_up()
        for member in self._broker.group(group).remove_members():
            asyncio.get_running_loop().call_later(HEARTBEAT_S, member.join_again)

    async def move(self, group: str, positions: Mapping[TopicPartition, Committed]) -> None:
        """Commits for a group without members; see `GroupAdmin.move`."""
        self._broker.check_up()
        check_metadata({data: it.metadata for data, it in positions.items()})
        for data in positions:
            if self._broker.log(data) is None:
                raise FatalError(f"{data} does not exist", hint="create the topic")
        if self._broker.group(group).is_active:
            raise ActiveGroupError(f"group {group} has members", hint="stop them, then try again")
        self._broker.group(group).committed.update(positions)
        self._broker.watchers.notify()

    async def close(self) -> None:
        """Does nothing: an admin holds no resources."""
