"""Partitions that a topic gains while clients of it are open: promises on every connector (C13)."""

from typing import cast

from stilltide.connectors.ports.copying import Copies, LinkConnector, Span
from stilltide.schemas.values import Offset, TopicPartition
from tests.contract.rig import Reports, Rig, read_records
from tests.support.snapshots.client import eventually


async def _grown(rig: Rig, log: TopicPartition, count: int) -> TopicPartition:
    """Adds partitions up to `count`; returns the last one once an admin shows it."""
    added = TopicPartition(log.topic, count - 1)
    admin = rig.connector.admin()
    await admin.add_partitions(log.topic, count)

    async def there() -> bool:
        return added in await admin.end_offsets([added])

    await eventually(there)
    await admin.close()
    return added


async def test_a_writer_writes_to_a_partition_added_after_its_first_record(
    rig: Rig, log: TopicPartition
):
    """Records of a partition that the writer did not know are reported in order, none fails."""
    writer, reports = rig.connector.writer("w"), Reports()
    writer.append(log, b"before", reports.of(0))
    await reports.wait_for(1)
    added = await _grown(rig, log, 4)
    for number in range(1, 101):
        writer.append(added, b"%d" % number, reports.of(number))
    await reports.wait_for(101)
    await writer.close()
    assert [(number, error) for number, error, _ in reports.seen] == [(n, None) for n in range(101)]
    assert reports.offsets[1:] == list(range(100))


async def test_a_writer_that_is_closed_at_once_writes_to_an_added_partition(
    rig: Rig, log: TopicPartition
):
    """`close` waits for records of a partition that the writer did not know."""
    writer, reports = rig.connector.writer("w"), Reports()
    writer.append(log, b"before", reports.of(0))
    await reports.wait_for(1)
    added = await _grown(rig, log, 3)
    writer.append(added, b"x", reports.of(1))
    await writer.close()
    assert [(number, error) for number, error, _ in reports.seen] == [(0, None), (1, None)]


async def test_a_reader_reads_a_partition_added_after_its_first_record(
    rig: Rig, log: TopicPartition
):
    """An added partition that is assigned to an open reader is read from its start."""
    writer, reports = rig.connector.writer("w"), Reports()
    writer.append(log, b"before", reports.of(0))
    reader = rig.connector.reader("r")
    await reader.assign({log: Offset(0)})
    await read_records(reader, 1)
    added = await _grown(rig, log, 5)
    await reader.assign({log: Offset(1), added: Offset(0)})
    writer.append(added, b"after", reports.of(1))
    (record,) = await read_records(reader, 1)
    assert (record.data, record.value) == (added, b"after")
    await reader.close()
    await writer.close()


async def test_a_copy_writer_copies_to_a_partition_added_after_its_first_copy(
    rig: Rig, log: TopicPartition
):
    """A transaction of copies takes an added partition."""
    writer = cast("LinkConnector", rig.connector).copy_writer(f"c-{log.topic}")
    await writer.fence()
    await writer.begin()
    await writer.copy(log, Copies([b"k"], [b"a"], [1], [[]]), Span())
    await writer.flush()
    await writer.commit([])
    added = await _grown(rig, log, 4)
    await writer.begin()
    span = Span()
    await writer.copy(added, Copies([b"k"], [b"b"], [1], [[]]), span)
    await writer.flush()
    await writer.commit([])
    assert (span.first, span.end) == (0, 1)
    await writer.close()
