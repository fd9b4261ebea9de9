"""Attaches the assigned partitions of a member to their pending-ack stores.

*Source*: docs/protocols G.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from stilltide.connectors.chance import Chance
from stilltide.pipeline.drivers.pending_ack.assigned_partition import AssignedPartition
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.schemas.values import TopicPartition


class Attaching:
    """Attaches each partition by one task at a time.

    Args:
        tasks: runs the requests.
        attached: called with each partition that is attached and was not revoked meanwhile.
        chance: makes the ids of the store's members.
    """

    def __init__(
        self, tasks: Tasks, attached: Callable[[TopicPartition], None], chance: Chance
    ) -> None:
        self._tasks = tasks
        self._attached = attached
        self._chance = chance
        self._under_way: set[AssignedPartition] = set()
        self._checking: asyncio.Task[object] | None = None

    def after(self, check: Coroutine[Any, Any, object]) -> None:
        """Attaches no partition before the check has ended.

        A cursor beyond the end would count every message of the log as acknowledged.
        """
        self._checking = self._tasks.start(check)

    def soon(self, partition: AssignedPartition) -> None:
        """Attaches to the store, if the member is not attached or was replaced."""
        if not partition.attached and not partition.revoked and partition not in self._under_way:
            self._under_way.add(partition)
            self._tasks.start(self._attach(partition))

    async def _attach(self, partition: AssignedPartition) -> None:
        try:
            if self._checking is not None:
                await asyncio.shield(self._checking)
            await partition.attach(self._chance)
        finally:
            self._under_way.remove(partition)
        if not partition.revoked:
            self._attached(partition.data)
