"""Holds delivered records back until it is known which of them the group has read elsewhere.

*Source*: docs/protocols I11.
*Invariants*: order is kept; no record of a partition passes before the claims were read; a skipped
record counts as taken, so that the group's offset passes it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Committed
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.read_committed.effects import Deliver
from stilltide.pipeline.drivers.groups.claims import ReadElsewhere, read_group_markers, tagged
from stilltide.schemas.values import TopicPartition


@dataclass(slots=True, eq=False)
class _Partition:
    """One partition from its assignment to its revocation."""

    committed: Committed | None
    elsewhere: ReadElsewhere | None = None  # None: not known yet
    held: list[Deliver[Record]] = field(default_factory=list[Deliver[Record]])
    skipped: int = 0

    def passed(self, found: Deliver[Record]) -> Deliver[Record]:
        """The records that the group has not read anywhere."""
        assert self.elsewhere is not None
        records = self.elsewhere.unread(found.payloads)
        self.skipped += len(found.payloads) - len(records)
        return Deliver(records, found.position)


Opened = Mapping[TopicPartition, _Partition]


class ElsewhereFilter:
    """Skips, for one member of a group, the records that the group has read on other clusters.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
        group: name of the consumer group.
        topic_ids: Kafka's ids of the topics that the group reads, by name.
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
        """Begins these partitions; call `learn` with the result."""
        opened = {data: _Partition(held) for data, held in committed.items()}
        self._partitions |= opened
        return opened

    def drop(self, data: TopicPartition) -> None:
        """Forgets a partition that is not read any more."""
        self._partitions.pop(data, None)

    async def learn(self, opened: Opened) -> None:
        """Finds out which records the group has read elsewhere; safe to call again.

        Raises:
            DecodeError: a signal, or the metadata of the group's commit, cannot be decoded.
            ConnectorError: the signals cannot be read.
        """
        markers = await read_group_markers(self._connector, self._admin, opened, self._group)
        for data, one in opened.items():
            topic_id = self._topic_ids.get(data.topic)
            if topic_id is not None:  # None: the topic is gone, and the partition will be revoked
                one.elsewhere = markers[data].for_member(one.committed, topic_id)

    def passed(self, data: TopicPartition, found: Deliver[Record]) -> Deliver[Record] | None:
        """The records to pass on to the application; None: they are held back."""
        one = self._partitions[data]
        if one.elsewhere is None or one.held:
            one.held.append(found)
            return None
        return one.passed(found)

    def release(self, data: TopicPartition) -> list[Deliver[Record]]:
        """The records of a partition that were held back, once `learn` has returned."""
        one = self._partitions.get(data)
        if one is None or one.elsewhere is None:
            return []
        held, one.held = one.held, []
        return [one.passed(found) for found in held]

    @property
    def holding(self) -> set[TopicPartition]:
        """The partitions with records that are held back."""
        return {data for data, one in self._partitions.items() if one.held}

    def counts(self, data: TopicPartition) -> tuple[int, int]:
        """Records skipped so far, and records held back."""
        one = self._partitions[data]
        return one.skipped, sum(len(found.payloads) for found in one.held)

    def metadata(
        self, cursors: Iterable[TopicPartition], metadata: Mapping[TopicPartition, str]
    ) -> Mapping[TopicPartition, str]:
        """Metadata of a commit, with the group's generation where the group is replicated."""
        found = dict(metadata)
        for data in cursors:
            one = self._partitions.get(data)
            elsewhere = one.elsewhere if one else None
            if elsewhere is not None and elsewhere.generation is not None:
                found[data] = tagged(metadata.get(data, ""), elsewhere.generation)
        return found
