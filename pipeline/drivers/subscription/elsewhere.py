"""Holds delivered records back until it is known which of them the group has read elsewhere.

*Source*: protocols.md I11.
*Invariants*: order is kept; nothing of a partition passes before its claims were read; a record
that is skipped counts as taken, so that the group's offset passes it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Committed
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.read_committed.effects import Deliver
from stilltide.pipeline.drivers.groups.claims import ReadElsewhere, read_group_markers
from stilltide.pipeline.drivers.groups.metadata import tagged
from stilltide.schemas.values import TopicPartition


@dataclass(slots=True, eq=False)
class _Partition:
    """One partition from its assignment to its revocation."""

    committed: Committed | None
    elsewhere: ReadElsewhere | None = None  # None: not known yet
    held: list[Deliver[Record]] = field(default_factory=list[Deliver[Record]])
    skipped: int = 0

    def passed(self, found: Deliver[Record]) -> Deliver[Record]:
        """What the group has not read."""
        assert self.elsewhere is not None
        records = self.elsewhere.unread(found.payloads)
        self.skipped += len(found.payloads) - len(records)
        return Deliver(records, found.position)


Opened = Mapping[TopicPartition, _Partition]


class ElsewhereFilter:
    """Of one member of a group.

    Args:
        connector: the cluster.
        admin: of the same cluster; the caller's to close.
        group: consumer group.
        topic_ids: of the topics that the group reads.
    """

    def __init__(
        self, connector: Connector, admin: LogAdmin, group: str, topic_ids: Mapping[str, bytes]
    ) -> None:
        self._connector = connector
        self._admin = admin
        self._group = group
        self._topic_ids = topic_ids
        self._partitions: dict[TopicPartition, _Partition] = {}

    def open(self, committed: Mapping[TopicPartition, Committed | None]) -> Opened:
        """Begins these partitions; `learn` is to be called with the result."""
        opened = {data: _Partition(held) for data, held in committed.items()}
        self._partitions |= opened
        return opened

    def drop(self, data: TopicPartition) -> None:
        """Forgets a partition that is not read any more."""
        self._partitions.pop(data, None)

    async def learn(self, opened: Opened) -> None:
        """Reads what the group has read elsewhere; safe to call again.

        Raises:
            DecodeError: a marker, or the group's commit, that cannot be understood.
            ConnectorError: of reading.
        """
        markers = await read_group_markers(self._connector, self._admin, opened, self._group)
        for data, one in opened.items():
            one.elsewhere = markers[data].for_member(one.committed, self._topic_ids[data.topic])

    def passed(self, data: TopicPartition, found: Deliver[Record]) -> Deliver[Record] | None:
        """What goes on to the application; None: nothing yet."""
        one = self._partitions[data]
        if one.elsewhere is None or one.held:
            one.held.append(found)
            return None
        return one.passed(found)

    def release(self, data: TopicPartition) -> list[Deliver[Record]]:
        """What was held back of a partition, once `learn` has returned."""
        one = self._partitions.get(data)
        if one is None or one.elsewhere is None:
            return []
        held, one.held = one.held, []
        return [one.passed(found) for found in held]

    @property
    def holding(self) -> set[TopicPartition]:
        """Partitions of which something is held back."""
        return {data for data, one in self._partitions.items() if one.held}

    def counts(self, data: TopicPartition) -> tuple[int, int]:
        """Records skipped so far, and records held back."""
        one = self._partitions[data]
        return one.skipped, sum(len(found.payloads) for found in one.held)

    def metadata(
        self, cursors: Iterable[TopicPartition], metadata: Mapping[TopicPartition, str]
    ) -> Mapping[TopicPartition, str]:
        """Metadata of a commit that names the generation, where the group is replicated."""
        found = dict(metadata)
        for data in cursors:
            one = self._partitions.get(data)
            elsewhere = one.elsewhere if one else None
            if elsewhere is not None and elsewhere.generation is not None:
                found[data] = tagged(metadata.get(data, ""), elsewhere.generation)
        return found
