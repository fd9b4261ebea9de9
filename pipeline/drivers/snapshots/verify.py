"""Verifies snapshots against the data and the markers that are still in the logs.

*Source*: docs/protocols D4, E4. No Spark is needed: the headers are read at the rate of the client
library and no record is kept, so that an operator need not wait for a JVM.

*Invariants*: those of `SnapshotCheck`; a snapshot that cannot be used is reported as a difference,
and the other topics are still verified.
"""

from typing import NamedTuple

from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Fetching
from stilltide.pipeline.core.snapshots.verify import Difference, DifferenceKind, SnapshotCheck
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.snapshots.outcomes import Progress, TopicOutcomes, gather_evidence
from stilltide.pipeline.errors import SnapshotError
from stilltide.schemas.errors import MalformedHeaderError
from stilltide.schemas.headers import txn_header
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

PROGRESS_RECORDS = 500_000

KEPT_MARKERS_MAX = 2_000_000
"""Most absorbed markers that are compared with the snapshots that absorbed them (E9)."""


class CheckedSnapshot(NamedTuple):
    """The figures of the verification of one snapshot.

    Attributes:
        data: the data partition.
        max_read_position: M; records below M were compared.
        markers: number of markers compared with the aborted set.
        records_checked: number of coordinated records below M that have a marker.
        records_unchecked: number of coordinated records below M whose marker was trimmed.
        ids_unchecked: number of ids of the aborted set whose marker was trimmed.
        difference_count: number of differences found.
    """

    data: TopicPartition
    max_read_position: EndOffset
    markers: int
    records_checked: int
    records_unchecked: int
    ids_unchecked: int
    difference_count: int


class VerifiedTopic(NamedTuple):
    """The figures of a topic's snapshots, and the first differences of each kind."""

    checked: list[CheckedSnapshot]
    differences: list[Difference]


async def verify_topic(
    connector: Connector, topic: str, *, evidence_max: int, progress: Progress = lambda _: None
) -> VerifiedTopic:
    """Compares every snapshot of a topic with what can still be recomputed, as of now.

    Raises:
        FatalError: the topic does not exist, or records were deleted during the read.
        DecodeError: a record of a system topic is foreign, or of a later version.
        RetriableError: the broker is away.
    """
    try:
        evidence = await gather_evidence(
            connector, [topic], progress, kept_markers_max=KEPT_MARKERS_MAX
        )
    except SnapshotError as error:
        place = TopicPartition(error.topic or topic, error.partition or 0)
        detail = f"{error.primary}; {error.detail}"
        return VerifiedTopic([], [Difference(DifferenceKind.UNUSABLE, place, None, None, detail)])
    checks = {
        data: SnapshotCheck(data, snapshot, evidence.absorbed_to[data], evidence_max=evidence_max)
        for data, snapshot in evidence.snapshots.items()
    }
    for offset, marker in zip(evidence.marker_offsets, evidence.markers, strict=True):
        if (check := checks.get(marker.data)) is not None:
            check.marker_read(offset, marker)
    await _read_data(connector, evidence, checks, progress)
    return VerifiedTopic(
        [_checked(data, evidence, check) for data, check in sorted(checks.items())],
        [difference for _, check in sorted(checks.items()) for difference in check.differences],
    )


async def _read_data(
    connector: Connector,
    evidence: TopicOutcomes,
    checks: dict[TopicPartition, SnapshotCheck],
    progress: Progress,
) -> None:
    ranges = [_decided(evidence, read) for read in evidence.data if read.data in checks]
    total = sum(max(0, read.end - read.start) for read in ranges)
    progress(f"reading {total} offsets of {len(ranges)} partitions")
    seen, report_at = 0, PROGRESS_RECORDS
    reader = connector.reader("snapshot-check", fetching=Fetching.SCANNING)
    async with closing(reader):
        async for records in scan(reader, ranges):
            by_partition: dict[TopicPartition, list[tuple[Offset, bytes]]] = {}
            for record in records:
                try:
                    txn = txn_header(record.headers)
                except MalformedHeaderError:  # every reader withholds it, with any snapshot
                    continue
                if txn is not None:
                    place = TopicPartition(record.topic, record.partition)
                    by_partition.setdefault(place, []).append((record.offset, txn))
            for place, batch in by_partition.items():
                checks[place].records_read(batch)
            seen += len(records)
            if seen >= report_at:
                progress(f"{seen} records of {total} offsets")
                report_at += PROGRESS_RECORDS


def _decided(evidence: TopicOutcomes, read: OffsetRange) -> OffsetRange:
    return read._replace(end=evidence.snapshots[read.data].end.max_read_position)


def _checked(
    data: TopicPartition, evidence: TopicOutcomes, check: SnapshotCheck
) -> CheckedSnapshot:
    return CheckedSnapshot(
        data,
        evidence.snapshots[data].end.max_read_position,
        check.markers,
        check.records_checked,
        check.records_unchecked,
        check.ids_unchecked,
        check.counts.total(),
    )
