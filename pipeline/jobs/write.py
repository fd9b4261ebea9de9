"""Writes a frame to a topic exactly once, by Spark's own sink and a prepared transaction.

*Source*: docs/protocols L9. Blocks; may be called from a notebook, and in `foreachBatch`.

*Invariants*: what is prepared was counted on the topic after Spark's job had ended, and no task
that wrote failed, was killed or ran twice.

Refuses frames of streams, and a progress directory of another topic.
"""

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.names import check_text, check_topic_names
from stilltide.connectors.spark.errors import check_argument, check_classic, spark_errors
from stilltide.connectors.spark.sink import (
    Stands,
    check_options,
    count_records,
    query_batch,
    sink_columns,
    write_records,
)
from stilltide.pipeline.core.coordinator.batch_write import (
    AbortOpen,
    BatchEffect,
    BatchOutcome,
    EndDecided,
    KeepDecision,
    KeepEnd,
    KeepToken,
    PrepareOpen,
    ReadFiles,
    WriteRecords,
    write_batch,
)
from stilltide.pipeline.drivers.coordinator.batch_transactions import (
    BatchTransactions,
    OpenBatch,
    connect_batches,
)
from stilltide.pipeline.errors import ConfigError
from stilltide.pipeline.jobs.batch_files import BatchFolder, BatchId, BatchSource
from stilltide.pipeline.jobs.blocking import BlockingLoop
from stilltide.pipeline.jobs.tables.target import TableFormat, TableTarget, files_of
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.prepared_tokens import encode_token
from stilltide.schemas.coordinator.transactions import Written
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import Offset, OffsetRange, TopicPartition

log = get_logger(__name__)

TIMEOUT_S = 300.0
TRIES = 4
_REQUEST_TIMEOUT_S = 60.0
_TIMEOUT_S_MIN, _TIMEOUT_S_MAX = 1.0, 24 * 60 * 60.0


def write(
    frame: DataFrame,
    cluster: Cluster,
    *,
    topic: str,
    progress: str,
    batch_id: BatchId | None = None,
    timeout_s: float = TIMEOUT_S,
    tries: int = TRIES,
    options: Mapping[str, str] | None = None,
) -> bool:
    """Writes the records of a frame to a topic, all of them once, or none.

    After an error or a crash, call the function again with the same frame and `batch_id`: a batch
    that was decided is not written again, and what an earlier call has left is hidden.

    Args:
        frame: the columns of Spark's Kafka sink: `value`, and `key`, `headers` and `partition` if
            they are there; other columns are left out. No row has a header `txn`.
        cluster: addresses of brokers, or a `KafkaConfig` for a cluster with TLS or SASL.
        topic: a topic that does not compact.
        progress: a directory, by path or URI, for the batches of this topic alone. Its files hold
            secrets.
        batch_id: the number or name of the batch, such as that of `foreachBatch`. Without one, the
            directory is for a single batch, and a further call is refused.
        timeout_s: time-out of the transaction: writing and counting takes less. Readers wait that
            long for a driver that died; the workers' `txn_timeout_ms_max` is the limit.
        tries: how often the records are written at most, if tasks fail or are killed; >= 1.
        options: more options of the producers, such as `{"compression.type": "lz4"}`.

    Returns:
        Whether this call has written the records; False: an earlier one had. They are committed.

    Raises:
        ConfigError, FatalError: an argument is out of its bounds, or the topic does not exist.
        BatchError: the directory is of another topic, or damaged; another program writes the batch;
            a streaming query has written other records under this number, as happens after a
            checkpoint was deleted or set back; or no try held exactly the records. Nothing of the
            frame is visible.
        TableError: the directory cannot be written to.
        RefusedError: the transaction was aborted, for example at its time-out.
        OutcomeUnknownError, RequestTimeoutError, RetriableError: no answer; call again.
    """
    _check(frame, topic, progress, options or {})
    _check_bounds(timeout_s, tries)
    files = files_of(frame.sparkSession, TableTarget(TableFormat.PARQUET, progress))
    folder = BatchFolder(files, batch_id, _source(frame.sparkSession))
    folder.check_open()
    sink = _Sink(frame, cluster, topic, int(timeout_s * 1000), options or {})
    return _written(sink, folder, cluster, tries) is BatchOutcome.WRITTEN


def _source(spark: SparkSession) -> BatchSource:
    """What tells the batch of a streaming query from another one of its number."""
    batch = query_batch(spark)
    if not batch.checkpoint:
        return BatchSource(batch.query)
    checkpoint = files_of(spark, TableTarget(TableFormat.PARQUET, batch.checkpoint))
    with suppress(OSError):
        return BatchSource(batch.query, sha256(checkpoint.read(batch.offsets).encode()).hexdigest())
    return BatchSource(batch.query)


def _check(frame: DataFrame, topic: str, progress: str, options: Mapping[str, str]) -> None:
    """Passes what needs no cluster to be checked; raises as `write`."""
    check_argument("frame", frame, "DataFrame", "sparkSession")
    check_topic_names([topic])
    check_text(progress, "`progress`")
    check_classic(frame.sparkSession)
    sink_columns(frame)
    check_options(options)


def _check_bounds(timeout_s: float, tries: int) -> None:
    if not _TIMEOUT_S_MIN <= timeout_s <= _TIMEOUT_S_MAX or tries < 1:
        raise ConfigError(
            f"`timeout_s` is {timeout_s}, `tries` is {tries}",
            hint=f"seconds from {_TIMEOUT_S_MIN:g} to {_TIMEOUT_S_MAX:g}, and one try or more",
        )


def _written(sink: "_Sink", folder: BatchFolder, cluster: Cluster, tries: int) -> BatchOutcome:
    connector = KafkaConnector(config_of(cluster))
    with BlockingLoop() as loop:
        entered = connect_batches(connector, "spark-write", timeout_s=_REQUEST_TIMEOUT_S)
        transactions = loop.run(entered.__aenter__())
        try:
            return _Writing(loop, transactions, folder, sink).carry_out(tries)
        finally:
            loop.run(entered.__aexit__(None, None, None))


class _Sink:
    """Writes the frame, and counts; the topic's part of a batch."""

    def __init__(
        self,
        frame: DataFrame,
        cluster: Cluster,
        topic: str,
        timeout_ms: int,
        options: Mapping[str, str],
    ) -> None:
        self._frame = frame
        self._cluster = cluster
        self._options = options
        self.topic = topic
        self.timeout_ms = timeout_ms

    @property
    def spark(self) -> SparkSession:
        return self._frame.sparkSession

    def written(
        self, loop: BlockingLoop, transactions: BatchTransactions, batch: OpenBatch
    ) -> list[Written] | None:
        """The counts, if exactly the records of the frame stand; else None."""
        txn = batch.token.txn
        with spark_errors(self._cluster, [self.topic]):
            run = write_records(self._frame, self._cluster, self.topic, txn, self._options)
        ends = loop.run(transactions.ends(batch))
        if not run.is_clean or ends is None:
            log.warning("batch_not_clean", transaction=str(txn), rows=run.rows, grown=ends is None)
            return None
        ranges = [
            OffsetRange(data, Offset(start), ends[data])
            for data, start, _ in batch.registered
            if ends[data] > start
        ]
        stands = self._stands(ranges, run.rows, batch)
        count = sum(it.records for it in stands.values())
        if count != run.rows:
            return None
        return [Written(data, it.first, it.end, it.records) for data, it in sorted(stands.items())]

    def _stands(
        self, ranges: list[OffsetRange], rows: int, batch: OpenBatch
    ) -> dict[TopicPartition, Stands]:
        # The job has ended well, so each of the rows has an offset here. If there are no more
        # offsets than rows, nothing else was written meanwhile, and nothing has to be read.
        if sum(read.end - read.start for read in ranges) == rows:
            return {it.data: Stands(it.start, it.end, it.end - it.start) for it in ranges}
        if not ranges:
            return {}
        with spark_errors(self._cluster, [self.topic]):
            return count_records(self.spark, self._cluster, ranges, batch.token.txn)


class _Writing:
    """Carries out the effects of one call."""

    def __init__(
        self,
        loop: BlockingLoop,
        transactions: BatchTransactions,
        folder: BatchFolder,
        sink: _Sink,
    ) -> None:
        self._loop = loop
        self._transactions = transactions
        self._folder = folder
        self._sink = sink
        self._batch: OpenBatch | None = None
        self._written: list[Written] = []

    def carry_out(self, tries: int) -> BatchOutcome:
        """Writes the batch; raises as `write`."""
        topic_id = self._loop.run(self._transactions.topic_id(self._sink.topic))
        self._folder.check_target(self._transactions.cluster_id, self._sink.topic, topic_id)
        writing = write_batch(tries)
        effect = next(writing)
        try:
            while True:
                try:
                    result = self._result(effect)
                except StilltideError as error:
                    effect = writing.throw(error)
                else:
                    effect = writing.send(result)
        except StopIteration as end:
            return end.value
        finally:
            writing.close()

    def _result(self, effect: BatchEffect) -> object:  # noqa: PLR0911 - one for each effect
        match effect:
            case ReadFiles():
                return self._folder.read()
            case WriteRecords():
                return self._write()
            case KeepToken(attempt, token):
                return self._folder.keep_token(attempt, token)
            case PrepareOpen():
                return self._loop.run(self._transactions.prepare(self._open, self._written))
            case AbortOpen():
                return self._loop.run(self._transactions.abort(self._open))
            case KeepDecision(attempt, committed):
                return self._folder.keep_decision(attempt, committed=committed)
            case EndDecided(token, committed):
                return self._loop.run(self._transactions.decide(token, committed=committed))
            case KeepEnd(attempt):
                return self._folder.keep_end(attempt)

    def _write(self) -> str | None:
        sink = self._sink
        opening = self._transactions.open(sink.topic, sink.timeout_ms)
        self._batch = batch = self._loop.run(opening)
        try:
            written = sink.written(self._loop, self._transactions, batch)
        except BaseException:
            with suppress(StilltideError):  # its time-out aborts it
                self._loop.run(self._transactions.abort(batch))
            raise
        if written is None:
            self._loop.run(self._transactions.abort(batch))
            return None
        self._written = written
        return encode_token(batch.token)

    @property
    def _open(self) -> OpenBatch:
        assert self._batch is not None, "a transaction is open"
        return self._batch
