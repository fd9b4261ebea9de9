"""Finds damaged records of a topic that keeps the last of each key, and what may replace them.

*Source*: docs/protocols B10. Only the last value of a key counts, so only that one is judged.
*Invariants*: a value is written again only if it decodes and lies in the same partition under the
same key; a key is dropped only if nothing that a reader shows depends on it. Anything else is left
as it is, and the reason is given.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Fetching, NewRecord, Record
from stilltide.pipeline.drivers.repair import judging
from stilltide.pipeline.drivers.repair.judging import Damage, Repair
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.shared.named_partitions import missing_topic
from stilltide.schemas.coordinator.markers import decode_key as marker_key
from stilltide.schemas.errors import DecodeError, UnknownVersionError
from stilltide.schemas.headers import txn_header
from stilltide.schemas.native.aborted_index import decode_key as index_key
from stilltide.schemas.replication.positions import beat_key, last_error_key
from stilltide.schemas.replication.positions import decode_key as bucket_key
from stilltide.schemas.replication.signals import AppliedKey, UpdateKey
from stilltide.schemas.replication.signals import decode_key as signal_key
from stilltide.schemas.snapshots.snapshots import (
    EndKey,
    PartKey,
    StarKey,
    decode_end,
    decode_star,
    end_key,
)
from stilltide.schemas.snapshots.snapshots import decode_key as snapshot_key
from stilltide.schemas.topics import (
    ABORTED_INDEX,
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    SETTINGS,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
)
from stilltide.schemas.values import Offset, OffsetRange, TopicPartition


class _Values(NamedTuple):
    """The values of one key.

    Attributes:
        last: the last record.
        sound: the last record that decodes and is no tombstone; None: there is none any more.
    """

    last: Record
    sound: Record | None


async def find_damage(connector: Connector, admin: LogAdmin, log: TopicPartition) -> list[Damage]:
    """The damaged records of a partition, each with its remedy; nothing is written.

    Raises:
        ConnectorError: the partition cannot be read.
    """
    values = await _values(connector, admin, log)
    damage: list[Damage] = []
    for values_of_key in values.values():
        error = judging.error_of(values_of_key.last) or _without_end(values, values_of_key.last)
        if error is None:
            continue
        if isinstance(error, UnknownVersionError):
            remedy = Repair("", "a newer version wrote the record: upgrade the workers")
        else:
            remedy = await _remedy(_Case(connector, admin, log, values, values_of_key))
        damage.append(Damage(values_of_key.last, error.primary, remedy))
    return damage


def _without_end(values: Mapping[bytes | None, _Values], record: Record) -> DecodeError | None:
    """The error of a part of a snapshot that has no end (E4); None for any other record."""
    data = judging.part_of(record)
    if data is None:
        return None
    end = values.get(end_key(data))
    if end is not None and end.last.value is not None:
        return None
    return DecodeError(f"a part of the snapshot of {data}, which has no end")


class _Case(NamedTuple):
    """One damaged record, and what there is to judge by."""

    connector: Connector
    admin: LogAdmin
    log: TopicPartition
    values: Mapping[bytes | None, _Values]
    damaged: _Values

    def dropped(self, loses: str, action: str = "write a tombstone for the key") -> Repair:
        """Drops the key."""
        return Repair(action, loses, [NewRecord(self.log, self.damaged.last.key, None)])

    def restored(self, loses: str) -> Repair:
        """Writes the last value again that decodes."""
        sound = self.damaged.sound
        assert sound is not None
        action = f"write the value of offset {sound.offset} again"
        return Repair(action, loses, [NewRecord(self.log, sound.key, sound.value)])

    async def exists(self, data: TopicPartition) -> bool:
        """Whether there is such a data partition."""
        topic = (await self.admin.describe_topics([data.topic])).get(data.topic)
        return topic is not None and data.partition < topic.partition_count


async def _values(
    connector: Connector, admin: LogAdmin, log: TopicPartition
) -> dict[bytes | None, _Values]:
    committed = log.topic not in {TXN_MARKERS, SETTINGS}
    starts, ends = (
        await admin.start_offsets([log]),
        await admin.end_offsets([log], committed=committed),
    )
    if log not in starts or log not in ends:
        raise missing_topic(log.topic)
    by_key: dict[bytes | None, _Values] = {}
    async with closing(
        connector.reader("repair", committed=committed, fetching=Fetching.SCANNING)
    ) as reader:
        async for records in scan(reader, [OffsetRange(log, starts[log], ends[log])]):
            for record in records:
                before = by_key.get(record.key)
                is_sound = record.value is not None and judging.error_of(record) is None
                sound = record if is_sound else before and before.sound
                by_key[record.key] = _Values(record, sound)
    return by_key


async def _remedy(case: _Case) -> Repair:
    return await REMEDIES[case.log.topic](case)


async def _bucket(case: _Case) -> Repair:
    if beat_key(case.damaged.last.key) is not None:
        return case.dropped("nothing: a link that runs writes its next beat within 5 s")
    if last_error_key(case.damaged.last.key) is not None:
        return case.dropped("nothing but what `stilltide status` shows as the last error of a link")
    data = bucket_key(case.damaged.last.key).data
    if not await case.exists(data):
        return case.dropped(f"nothing: {data} does not exist here")
    return Repair("", _NOTHING_SAFE)


_NOTHING_SAFE = (
    "the record says how far a link has copied; without it records would be copied twice. Copy the "
    "topic to a new name, or ask those who wrote the record for its value"
)


async def _setting(case: _Case) -> Repair:
    if case.damaged.sound is not None:
        return case.restored("a later change of the setting, if the damaged record was one")
    return case.dropped("the setting: each worker uses its own settings from its next start on")


async def _marker(case: _Case) -> Repair:
    data, txn = marker_key(case.damaged.last.key)
    if case.damaged.sound is not None:
        return case.restored("nothing: it is the outcome that the coordinator wrote")
    if not await case.exists(data):
        return case.dropped(f"nothing: {data} does not exist")
    if await _has_records(case, data, txn.to_bytes()):
        return Repair(
            "",
            f"{data} holds records of transaction {txn}, and its outcome is in this record alone. "
            f"If the transaction is still there (stilltide txn describe {txn}), its coordinator "
            "writes the marker again when its partition moves to another worker",
        )
    return case.dropped(f"nothing: {data} has no record of transaction {txn}")


async def _has_records(case: _Case, data: TopicPartition, txn: bytes) -> bool:
    starts, ends = await case.admin.start_offsets([data]), await case.admin.end_offsets([data])
    async with closing(
        case.connector.reader("repair-data", committed=False, fetching=Fetching.SCANNING)
    ) as reader:
        async for records in scan(reader, [OffsetRange(data, starts[data], ends[data])]):
            for record in records:
                try:
                    if txn_header(record.headers) == txn:
                        return True
                except DecodeError:  # every reader withholds such a record
                    continue
    return False


async def _snapshot(case: _Case) -> Repair:
    name = snapshot_key(case.damaged.last.key)
    if not isinstance(name, StarKey) and not await case.exists(name.data):
        return _dropped_snapshot(case, name.data)
    if isinstance(name, PartKey):
        return _part(case)
    sound = case.damaged.sound
    markers = TopicPartition(TXN_MARKERS, case.log.partition)
    start = (await case.admin.start_offsets([markers])).get(markers, Offset(0))
    if sound is None or sound.value is None:
        return Repair("", _NO_SNAPSHOT)
    covered_to = (decode_star if isinstance(name, StarKey) else decode_end)(
        sound.value
    ).markers_covered_to
    if start > covered_to:
        return Repair(
            "",
            f"the snapshot of offset {sound.offset} has absorbed the markers below {covered_to}, "
            f"and txn-markers begins at {start}: outcomes are missing between. {_NO_SNAPSHOT}",
        )
    if isinstance(name, EndKey) and _missing_parts(case, name, sound):
        return Repair(
            "", f"parts of the snapshot of offset {sound.offset} are gone. {_NO_SNAPSHOT}"
        )
    return case.restored("nothing: the markers that it has not absorbed are still there")


_NO_SNAPSHOT = (
    "Without the snapshot aborted records would be shown as committed: restore the topic from a "
    "copy, or create the data topic again"
)


def _dropped_snapshot(case: _Case, data: TopicPartition) -> Repair:
    """Tombstones for the end and all parts: readers refuse the one without the other (E4)."""
    keys = [key for key in case.values if judging.snapshot_of(key) == data]
    return Repair(
        f"drop the snapshot of {data}: tombstones for {len(keys)} keys",
        f"nothing: {data} does not exist",
        [NewRecord(case.log, key, None) for key in keys],
    )


def _part(case: _Case) -> Repair:
    if _without_end(case.values, case.damaged.last) is not None or case.damaged.sound is None:
        return Repair("", _NO_SNAPSHOT)
    return case.restored("nothing, if its end names it: readers compare the checksum")


def _missing_parts(case: _Case, name: EndKey, sound: Record) -> bool:
    assert sound.value is not None
    end = decode_end(sound.value)
    for number, crc in enumerate(end.part_checksums, end.first_part):
        part = case.values.get(judging.part_key(name.data, number))
        if part is None or not judging.is_part(part.last, crc):
            return True
    return False


async def _index(case: _Case) -> Repair:
    data = index_key(case.damaged.last.key).data
    keys = [key for key in case.values if judging.index_of(key) == data]
    return Repair(
        f"drop the index of {data}: tombstones for {len(keys)} keys",
        "time: the partition is indexed again from its log start; until then the index answers "
        "'unknown' for it",
        [NewRecord(case.log, key, None) for key in keys],
    )


async def _signal(case: _Case) -> Repair:
    name = signal_key(case.damaged.last.key)
    if not isinstance(name, UpdateKey | AppliedKey):
        return case.dropped("a position snapshot: the controllers take another one")
    keys = [key for key in case.values if judging.group_of(key) == (name.data, name.group)]
    return Repair(
        f"forget the group's positions on {name.data}: tombstones for {len(keys)} keys",
        "which records the group has read on other clusters: after a fail-over to this cluster "
        "they are read again, until each cluster has written its position again",
        [NewRecord(case.log, key, None) for key in keys],
    )


REMEDIES: Mapping[str, Callable[[_Case], Awaitable[Repair]]] = {
    SETTINGS: _setting,
    TXN_MARKERS: _marker,
    TXN_SNAPSHOTS: _snapshot,
    ABORTED_INDEX: _index,
    REPLICATION_MARKERS: _signal,
    REPLICATION_POSITIONS: _bucket,
}
"""Finds the remedy, by topic."""
