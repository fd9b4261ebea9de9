"""Finds the records that a group has read on other clusters, so that its members here skip them.

*Source*: docs/protocols I7, I10, I11.
*Invariants*: a record is skipped only if a signal on this cluster claims it, and if the group's
commit names the generation of those claims, or there is no commit. A reader does not wait for
signals above the last stable offset: without them fewer records are skipped.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import (
    COMMIT_METADATA_CHARS_MAX,
    Committed,
    FetchedRecord,
    Record,
)
from stilltide.pipeline.core.offset_index import claims
from stilltide.pipeline.core.pending_ack.cursor import Cursor, decode, encode
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.replication import signals
from stilltide.schemas.replication.origins import (
    Claims,
    Incarnation,
    Origin,
    origin_of,
    topic_incarnation,
)
from stilltide.schemas.replication.signals import (
    Applied,
    AppliedKey,
    SignalKey,
    SignalValue,
    Update,
    UpdateKey,
)
from stilltide.schemas.topics import REPLICATION_MARKERS, system_partition
from stilltide.schemas.values import ClusterName, EndOffset, Offset, Range, Ranges, TopicPartition

_UNNAMED = ClusterName("")


@dataclass(frozen=True)
class ReadElsewhere:
    """The records of one data partition that a group has read on any cluster.

    Attributes:
        claimed: claims of the group; empty: no record is skipped.
        generation: generation to name in the group's commits; None: no generation.
        here: incarnation of the topic on this cluster; without a cluster's name if `claimed` does
            not contain it.
    """

    claimed: Claims
    generation: int | None
    here: Incarnation

    def unread(self, records: list[FetchedRecord]) -> list[FetchedRecord]:
        """I11: the records that the group has not read anywhere; 1.5 us for each with claims."""
        if not self.claimed:
            return records
        return [record for record in records if not claims.holds(self.claimed, self._of(record))]

    def _of(self, record: FetchedRecord) -> Origin:
        """The place of the first write: the `origin`, which is in no claim if no link wrote it."""
        return origin_of(record.headers()) or Origin(self.here, record.offset())


NOT_READ_ELSEWHERE = ReadElsewhere({}, None, Incarnation(_UNNAMED, b""))
"""For a group that is not replicated: no record is skipped."""


class GroupSignals:
    """The newest signals of one group on one data partition; fed in log order."""

    def __init__(self) -> None:
        self.updates: dict[ClusterName, Update] = {}
        self.applied: dict[ClusterName, Applied] = {}

    def read(self, key: SignalKey, value: SignalValue | None) -> None:
        """Takes a signal of the group."""
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
        """The highest generation in the signals (I10)."""
        values = [*self.updates.values(), *self.applied.values()]
        return max((value.generation for value in values), default=0)

    @property
    def claimed(self) -> Claims:
        """Union of all clusters' claims in the current generation (J in rule I7)."""
        of = self.generation
        return claims.join(*(it.claims for it in self.updates.values() if it.generation == of))

    def for_member(self, committed: Committed | None, topic_id: bytes) -> ReadElsewhere:
        """I11: the records that a member skips which begins at the group's commit.

        Raises:
            DecodeError: the commit's metadata has Stilltide's tag and cannot be decoded.
        """
        topic = topic_incarnation(topic_id)
        known = bool(self.updates or self.applied)
        fits = committed is None or generation_of(committed) == self.generation
        if not (known and fits):
            return ReadElsewhere({}, None, Incarnation(_UNNAMED, topic))
        claimed = self.claimed
        same = (incarnation for incarnation in claimed if incarnation.topic == topic)
        here = next(same, Incarnation(_UNNAMED, topic))
        return ReadElsewhere(claimed, self.generation, here)


async def read_group_signals(
    connector: Connector, admin: LogAdmin, partitions: Iterable[TopicPartition], group: str
) -> Mapping[TopicPartition, GroupSignals]:
    """The signals of a group on some data partitions, up to the last stable offset as of now.

    Raises:
        DecodeError: a record is no signal, or of a later version; names its place.
        ConnectorError: the signals cannot be read.
    """
    by_data = {data: GroupSignals() for data in partitions}
    topics = await admin.describe_topics([REPLICATION_MARKERS])
    if REPLICATION_MARKERS not in topics:
        return by_data
    count = topics[REPLICATION_MARKERS].partition_count
    numbers = sorted({system_partition(data, count) for data in by_data})
    logs = [TopicPartition(REPLICATION_MARKERS, number) for number in numbers]

    def decode(record: Record) -> tuple[SignalKey, SignalValue | None] | None:
        key = signals.decode_key(record.key)
        if not isinstance(key, UpdateKey | AppliedKey) or key.group != group:
            return None
        return signals.decode(record.key, record.value) if key.data in by_data else None

    feed = TopicFeed(connector, admin, "replicated-group", logs, decode)
    for key, value in await feed.once():
        by_data[key.data].read(key, value)
    return by_data


_FIELD = "g="
_TAG = "st1"


def generation_of(committed: Committed) -> int | None:
    """The generation that a commit names; None: no generation.

    Raises:
        DecodeError: the metadata has Stilltide's tag, and is damaged or of a later version.
    """
    cursor = decode(committed.offset, committed.metadata)
    for field in cursor.fields if cursor else ():
        if field.startswith(_FIELD) and field[2:].isdecimal():
            return int(field[2:])
    return None


def tagged(metadata: str, generation: int) -> str:
    """The metadata of a commit with this generation, and with all other fields unchanged."""
    fields = metadata.split(";") if metadata else [_TAG]
    if fields[0] != _TAG:
        return metadata
    kept = [field for field in fields if not field.startswith(_FIELD)]
    retagged = ";".join([*kept, f"{_FIELD}{generation}"])
    return retagged if len(retagged) <= COMMIT_METADATA_CHARS_MAX else ";".join(kept)


def reset(committed: Committed | None, offset: Offset) -> Committed:
    """The commit that an operator's reset through Kafka makes.

    A reset forward keeps what is acknowledged above the offset. A reset back, or to where the group
    stands, keeps nothing, neither acknowledgements nor a generation: every record from the offset
    on is to be read again. What cannot be decoded is forgotten too, since no member could go on.
    """
    if committed is None or offset <= committed.offset:
        return Committed(offset, "")
    try:
        cursor = decode(committed.offset, committed.metadata)
    except DecodeError:
        return Committed(offset, "")
    kept = Cursor(offset, _above(cursor, offset), cursor.fields if cursor else ())
    return Committed(offset, encode(kept))


def moved(
    committed: Committed | None, offset: Offset, generation: int, *, adopts: bool = False
) -> Committed:
    """The commit that moves a group to `offset`, or behind what it has acknowledged there (G).

    Where the group adopts a generation and does not go forward, nothing acknowledged is kept, as in
    `reset` (I10).

    Raises:
        DecodeError: the metadata of the group's commit has Stilltide's tag, and is damaged or of a
            later version.
    """
    cursor = decode(committed.offset, committed.metadata) if committed else None
    cursor = cursor or Cursor(offset)
    if adopts and committed is not None and offset <= committed.offset:
        cursor = cursor._replace(acknowledged=())
    cursor = cursor.moved(offset)
    return Committed(cursor.offset, tagged(encode(cursor), generation))


def _above(cursor: Cursor | None, offset: Offset) -> Ranges:
    """What is acknowledged above an offset."""
    return tuple(
        Range(Offset(max(first, offset + 1)), EndOffset(end))
        for first, end in (cursor.acknowledged if cursor else ())
        if end > offset + 1
    )
