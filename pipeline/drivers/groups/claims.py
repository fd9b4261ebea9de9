"""What a group has read on other clusters, so that its members here need not read it again.

*Source*: protocols.md I11.
*Invariants*: a record is skipped only if a marker of this cluster claims it, and the group's commit
bears the generation of those claims, or there is none. Markers that are not stable yet are not
waited for: without them less is skipped.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.fetching import Fetching
from stilltide.connectors.ports.readers import Committed
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.offset_index import claims
from stilltide.pipeline.drivers.groups.metadata import generation_of
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.schemas.errors import placed_each
from stilltide.schemas.placement import system_partition
from stilltide.schemas.replication import signals as replication_markers
from stilltide.schemas.replication.origins import (
    Claims,
    Incarnation,
    Origin,
    origin_of,
    topic_incarnation,
)
from stilltide.schemas.replication.signals import Applied, AppliedKey, Update, UpdateKey
from stilltide.schemas.topics import REPLICATION_MARKERS
from stilltide.schemas.values import ClusterName, OffsetRange, TopicPartition

_UNNAMED = ClusterName("")


@dataclass(frozen=True)
class ReadElsewhere:
    """What is known of a group on one data partition.

    Attributes:
        claimed: what it has read; empty: nothing is skipped.
        generation: that its commits bear; None: they bear none.
        here: the topic on this cluster, among `claimed` or without a name.
    """

    claimed: Claims
    generation: int | None
    here: Incarnation

    def unread(self, records: list[Record]) -> list[Record]:
        """Those that the group has not read anywhere; some 1.5 us for each if there are claims."""
        if not self.claimed:
            return records
        return [record for record in records if not claims.holds(self.claimed, self._of(record))]

    def _of(self, record: Record) -> Origin:
        """Where it was written first; what its header says is not claimed if it is no copy."""
        return origin_of(record.headers) or Origin(self.here, record.offset)


class GroupMarkers:
    """The newest markers of one group on one data partition; fed in log order."""

    def __init__(self) -> None:
        self.updates: dict[ClusterName, Update] = {}
        self.applied: dict[ClusterName, Applied] = {}

    def read(
        self, key: replication_markers.SignalKey, value: replication_markers.SignalValue | None
    ) -> None:
        """A marker of the group."""
        if isinstance(key, UpdateKey):
            self.updates.pop(key.source, None)
            if isinstance(value, Update):
                self.updates[key.source] = value
        elif isinstance(key, AppliedKey):
            self.applied.pop(key.source, None)
            if isinstance(value, Applied):
                self.applied[key.source] = value

    @property
    def generation(self) -> int:
        """The highest that is told of (I10)."""
        told = [*self.updates.values(), *self.applied.values()]
        return max((one.generation for one in told), default=0)

    @property
    def claimed(self) -> Claims:
        """J."""
        of = self.generation
        return claims.join(*(it.claims for it in self.updates.values() if it.generation == of))

    def for_member(self, committed: Committed | None, topic_id: bytes) -> ReadElsewhere:
        """What a member skips that begins where the group has committed.

        Raises:
            DecodeError: the commit's metadata is ours, and cannot be understood.
        """
        topic = topic_incarnation(topic_id)
        known = bool(self.updates or self.applied)
        fits = committed is None or generation_of(committed) == self.generation
        if not (known and fits):
            return ReadElsewhere({}, None, Incarnation(_UNNAMED, topic))
        claimed = self.claimed
        here = next((one for one in claimed if one.topic == topic), Incarnation(_UNNAMED, topic))
        return ReadElsewhere(claimed, self.generation, here)


async def read_group_markers(
    connector: Connector, admin: LogAdmin, partitions: Iterable[TopicPartition], group: str
) -> Mapping[TopicPartition, GroupMarkers]:
    """The markers of a group on some data partitions, up to the last stable offset as of now.

    Raises:
        DecodeError: a record that is no marker, or of a later version; names its place.
        ConnectorError: of reading.
    """
    found = {data: GroupMarkers() for data in partitions}
    topics = await admin.describe_topics([REPLICATION_MARKERS])
    if REPLICATION_MARKERS not in topics:
        return found
    count = topics[REPLICATION_MARKERS].partition_count
    numbers = sorted({system_partition(data, count) for data in found})
    logs = [TopicPartition(REPLICATION_MARKERS, number) for number in numbers]
    starts = await admin.start_offsets(logs)
    ends = await admin.end_offsets(logs, committed=True)
    if any(log not in starts or log not in ends for log in logs):
        raise RetriableError("a partition has no offsets yet", topic=REPLICATION_MARKERS)
    reader = connector.reader("replicated-group", fetching=Fetching.SCANNING)
    try:
        async for records in scan(reader, [OffsetRange(it, starts[it], ends[it]) for it in logs]):
            with placed_each(records) as each:
                for record in each:
                    key, value = replication_markers.decode(record.key, record.value)
                    if isinstance(key, UpdateKey | AppliedKey) and key.group == group:
                        markers = found.get(key.data)
                        if markers is not None:
                            markers.read(key, value)
    finally:
        await reader.close()
    return found
