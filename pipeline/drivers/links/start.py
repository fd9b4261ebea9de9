"""Reads what a link needs before it serves: its own buckets, and the signals on the target.

*Source*: docs/protocols H2.

*Invariants*: both are read at read_committed, up to the end that they had after `FenceTarget`; the
read waits while another link's open transaction holds the last stable offset back.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from stilltide.connectors.ports.records import EndReached, Fetching, Record
from stilltide.pipeline.core.links.effects import LinkEffect, ReadLinkPositions, ServeLink
from stilltide.pipeline.core.links.link import Link
from stilltide.pipeline.drivers.links.sides import Side
from stilltide.pipeline.drivers.service.passed_over import pass_over
from stilltide.pipeline.drivers.shared.log_scan import LastRecords
from stilltide.schemas.errors import DecodeError, StilltideError, placed
from stilltide.schemas.placement import system_partition
from stilltide.schemas.replication import signals as replication_markers
from stilltide.schemas.replication.positions import decode_bucket, decode_key, is_of_link
from stilltide.schemas.topics import REPLICATION_MARKERS, REPLICATION_POSITIONS
from stilltide.schemas.values import Offset, TopicPartition


async def feed_positions(
    machine: Link[Any], effect: ReadLinkPositions, target: Side, partition: int
) -> list[LinkEffect[Any]]:
    """Carries out `ReadLinkPositions`; returns the machine's effects at the end of the buckets."""
    place = TopicPartition(REPLICATION_POSITIONS, partition)
    last = LastRecords()
    async with aclosing(_read(target, place)) as items:
        async for item in items:
            if isinstance(item, Record):
                last.add(item)
                continue
            await _feed(last, target, partial(_bucket_read, machine))
            effects = machine.positions_read(item.end_offset)
            if effects:
                assert effects == [ServeLink()]
                return effects
    raise AssertionError(f"reading up to {effect.until} ended")


async def feed_target_markers(machine: Link[Any], target: Side, partition: int) -> None:
    """Feeds the target's signals about a positions partition's data, up to the end as of now."""
    places = marker_partitions(target, partition, target.counts[REPLICATION_POSITIONS])
    ends = await target.admin.end_offsets(places)
    last = LastRecords()
    for place in places:
        if not ends.get(place):
            continue
        async with aclosing(_read(target, place)) as items:
            async for item in items:
                if isinstance(item, Record):
                    last.add(item)
                elif item.end_offset >= ends[place]:
                    break
        await _feed(last, target, partial(_marker_read, machine, target, partition))


async def _feed(last: LastRecords, target: Side, feed: Callable[[Record], None]) -> None:
    """Feeds what counts of the records that were read (E10), or passes over it (B10)."""
    for records in last.slices():
        for record in records:
            with placed(record, StilltideError):
                try:
                    feed(record)
                except DecodeError as error:
                    await pass_over(target.connector, record, error)
        await asyncio.sleep(0)


def marker_partitions(side: Side, partition: int, partition_count: int) -> list[TopicPartition]:
    """The partitions with the signals of the data partitions that `partition` serves."""
    if side.counts[REPLICATION_MARKERS] == partition_count:
        return [TopicPartition(REPLICATION_MARKERS, partition)]
    return side.partitions(REPLICATION_MARKERS)


async def _read(side: Side, place: TopicPartition) -> AsyncGenerator[Record | EndReached, None]:
    starts = await side.admin.start_offsets([place])
    reader = side.connector.reader(
        f"link-start-{place.topic}-{place.partition}", fetching=Fetching.SCANNING
    )
    try:
        await reader.assign({place: Offset(starts[place])})
        while True:
            for item in await reader.read():
                yield item
    finally:
        await reader.close()


def _bucket_read(machine: Link[Any], record: Record) -> None:
    if is_of_link(record.key):
        return
    key = decode_key(record.key)
    machine.bucket_read(key, None if record.value is None else decode_bucket(record.value))


def _marker_read(machine: Link[Any], target: Side, partition: int, record: Record) -> None:
    key, value = replication_markers.decode(record.key, record.value)
    count = target.counts[REPLICATION_POSITIONS]
    if value is not None and system_partition(key.data, count) == partition:
        machine.target_marker_read(key, value)
