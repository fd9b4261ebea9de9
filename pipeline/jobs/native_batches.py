"""Reads the records that native transactions left visible in batches, each record exactly once.

*Source*: docs/protocols F3, F4, E8.

*Invariants*:
- F4 A batch ends at or below the last stable offset and the end of the index: a record that may
  still abort, or whose outcome is not indexed yet, is never emitted.
- The bounds of a batch are fixed before the batch is read, so each evaluation gives the same.
- `append_native_committed` moves a batch and its progress into the table by one rename: after a
  crash at any moment the next call goes on with the missing batch.

A loop of bounded reads, not a Spark stream with a checkpoint: a stream's Kafka source would read up
to the high watermark, past what is stable or indexed, and Spark does not store the checkpoint
together with the output.

Refuses: progress of a former topic, or below a log start (records that retention has deleted
unread), and what `gather_native` refuses. The output directory has to be shared by driver and
executors, and to have an atomic rename; an object store has none. Blocks.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.spark.errors import spark_errors
from stilltide.pipeline.drivers.native.evidence import NativeEvidence, gather_native
from stilltide.pipeline.jobs.blocking import run_blocking
from stilltide.pipeline.jobs.native_committed import native_committed
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

OFFSETS_MAX = 1_000_000

_PROGRESS = "_progress.json"
_STAGING = "_staging"
_VERSION = 1


class Progress(NamedTuple):
    """Where the next batch begins.

    Attributes:
        topic_ids: Kafka's 16-byte id of each topic that was read.
        positions: the next offset of each partition; a missing partition begins at its log start.
    """

    topic_ids: Mapping[str, bytes]
    positions: Mapping[TopicPartition, Offset]


class NativeBatch(NamedTuple):
    """Records, and the progress after them.

    Attributes:
        frame: the records, of schema `KAFKA_DDL`, with or without headers.
        reads: the ranges of offsets that the records are from.
        progress: where the next batch begins; to be stored in one step with the frame's output.
    """

    frame: DataFrame
    reads: Sequence[OffsetRange]
    progress: Progress


NOTHING = Progress({}, {})


def native_batches(
    spark: SparkSession,
    bootstrap_servers: Cluster,
    topics: Sequence[str],
    progress: Progress = NOTHING,
    *,
    offsets_max: int = OFFSETS_MAX,
    headers: bool = True,
) -> Iterator[NativeBatch]:
    """Batches from `progress` up to the end of what is stable and indexed when the first is made.

    Args:
        spark: a session with the Kafka source's jars (`connectors.spark.session`).
        bootstrap_servers: the cluster; `stilltide index` follows the topics.
        topics: names of topics, at least one.
        progress: the progress of the last batch whose output is stored.
        offsets_max: approximate limit of offsets in a batch, over all partitions; >= 1.
        headers: whether frames have the column `headers`.

    Raises:
        OffsetOutOfRangeError: records were deleted before they were read.
        FatalError: a topic does not exist, or was created again since the progress was made.
        AbortedIndexError: the index does not cover the beginning of a partition with records, or
            is not whole.
        DecodeError, RetriableError: as `read_native_committed` raises.
    """
    assert topics, "nothing to read"
    assert offsets_max >= 1
    connector = KafkaConnector(config_of(bootstrap_servers))
    evidence = run_blocking(gather_native(connector, topics))
    positions = _positions(evidence, progress)
    topic_ids = {**progress.topic_ids, **evidence.topic_ids}
    left = _left(evidence, positions)
    while left:
        share = max(1, offsets_max // len(left))
        reads = [read._replace(end=min(read.end, EndOffset(read.start + share))) for read in left]
        positions |= {read.data: Offset(read.end) for read in reads}
        with spark_errors(bootstrap_servers):
            frame = native_committed(spark, bootstrap_servers, evidence, reads, headers=headers)
        yield NativeBatch(frame, reads, Progress(topic_ids, dict(positions)))
        left = _left(evidence, positions)


def append_native_committed(
    spark: SparkSession,
    bootstrap_servers: Cluster,
    topics: Sequence[str],
    directory: Path,
    *,
    offsets_max: int = OFFSETS_MAX,
    headers: bool = True,
) -> int:
    """Appends records that became visible since the last call, as Parquet; returns the batch count.

    Each batch is a partition `batch=<number>` of the table in `directory`, with its progress in a
    file of the same folder. One caller at a time; to follow topics, call the function repeatedly.

    Args:
        spark: a session with the Kafka source's jars (`connectors.spark.session`).
        bootstrap_servers: the cluster; `stilltide index` follows the topics.
        topics: names of topics, at least one.
        directory: the table's directory, made when missing; driver and executors see the directory
            under this name.
        offsets_max: approximate limit of offsets in a batch, over all partitions; >= 1.
        headers: whether the table has the column `headers`.

    Raises:
        FatalError: the stored progress cannot be read, or is of a later version; another caller
            has written the same batch.
        Others: as `native_batches` raises.
    """
    directory.mkdir(parents=True, exist_ok=True)
    number, progress = _stored(directory)
    count = 0
    for batch in native_batches(
        spark, bootstrap_servers, topics, progress, offsets_max=offsets_max, headers=headers
    ):
        count += 1
        with spark_errors(bootstrap_servers):
            _store(batch, directory, number + count)
    return count


def _positions(evidence: NativeEvidence, progress: Progress) -> dict[TopicPartition, Offset]:
    for topic, known in progress.topic_ids.items():
        if evidence.topic_ids.get(topic, known) != known:
            raise FatalError(
                "the topic was deleted and created again since the last batch",
                hint="the topic's offsets begin again: write to a new directory",
                topic=topic,
            )
    positions = dict(progress.positions)
    for read in evidence.data:
        position = positions.setdefault(read.data, read.start)
        if position < read.start:
            raise OffsetOutOfRangeError(
                f"records from {position} on were deleted before they were read",
                detail=f"the log begins at {read.start}",
                hint="retention overtook the batches: run them more often, or use a new directory",
                topic=read.data.topic,
                partition=read.data.partition,
                offset=position,
            )
    return positions


def _left(
    evidence: NativeEvidence, positions: Mapping[TopicPartition, Offset]
) -> list[OffsetRange]:
    for data, problem in evidence.problems.items():
        if data not in evidence.covered_to:
            raise problem
    left = [part._replace(start=positions[part.data]) for part in evidence.covered()]
    return [read for read in left if read.start < read.end]


def _stored(directory: Path) -> tuple[int, Progress]:
    """The last batch and its progress."""
    numbers = [int(path.name.removeprefix("batch=")) for path in directory.glob("batch=*")]
    if not numbers:
        return 0, NOTHING
    path = _place(directory, max(numbers)) / _PROGRESS
    try:
        return max(numbers), _progress(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FatalError(
            f"{path} does not hold the progress of the batches",
            detail=f"{type(error).__name__}: {error}",
            hint="restore the file, or begin with another directory",
        ) from error


def _progress(body: Mapping[str, Any]) -> Progress:
    if body["version"] != _VERSION:
        raise ValueError(f"version {body['version']}")
    positions = {
        TopicPartition(topic, int(number)): Offset(int(offset))
        for topic, offsets in body["positions"].items()
        for number, offset in offsets.items()
    }
    topic_ids = {topic: bytes.fromhex(text) for topic, text in body["topic_ids"].items()}
    return Progress(topic_ids, positions)


def _store(batch: NativeBatch, directory: Path, number: int) -> None:
    staging = directory / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    batch.frame.write.parquet(staging.absolute().as_uri())
    positions: dict[str, dict[str, int]] = {}
    for data, position in sorted(batch.progress.positions.items()):
        positions.setdefault(data.topic, {})[str(data.partition)] = position
    topic_ids = {topic: known.hex() for topic, known in batch.progress.topic_ids.items()}
    body = {"version": _VERSION, "topic_ids": topic_ids, "positions": positions}
    with (staging / _PROGRESS).open("w") as file:
        json.dump(body, file)
        file.flush()
        os.fsync(file.fileno())
    place = _place(directory, number)
    try:
        staging.rename(place)
    except OSError as error:
        raise FatalError(
            f"{place} exists already",
            detail=str(error),
            hint="another job writes to this directory: run one job at a time",
        ) from error


def _place(directory: Path, number: int) -> Path:
    return directory / f"batch={number:010}"
