"""Waits until started brokers are ready: until they answer a metadata request."""

import os
import socket
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stilltide.connectors.local.addresses import (
    HOST,
    INTERNAL_PARTITIONS,
    REPLICAS_MAX,
    BrokerRecord,
)
from stilltide.connectors.local.broker import BrokerDir
from stilltide.connectors.local.errors import BrokerStartError

IDLE_S = 60.0
"""So long a process that starts may neither write to its log nor compute."""

COMPUTED_S = 1.0
"""Processor time within `IDLE_S` from which on a process counts as computing."""

START_S_MAX = 600.0
"""Time-out of a start that makes progress."""

STOP_TIMEOUT_S = 20.0
POLL_S = 0.02
_METADATA_TIMEOUT_S = 2.0
_CREATION_TIMEOUT_S = 30.0
_CREATION_ATTEMPTS = 3
_OFFSETS_TOPIC = "__consumer_offsets"


class StartProgress:
    """Whether processes that start still make progress: a log grows, or one of them computes.

    A machine that is busy with other things needs minutes for a start that else takes seconds.

    Args:
        logs: logs of the processes.
        pids: ids of the processes.
        idle_s: how long none of them need make progress.
        most_s: time-out of the whole start; a process may wait for ever and log that it does.
        now_s: monotonic clock.
    """

    def __init__(
        self,
        logs: Sequence[Path],
        pids: Sequence[int],
        *,
        idle_s: float = IDLE_S,
        most_s: float = START_S_MAX,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logs, self._pids = logs, pids
        self._idle_s, self._most_s = idle_s, most_s
        self._now_s = now_s
        self._began_s = self._moved_s = now_s()
        self._seen = self._look()

    def stalled(self) -> str:
        """Why there is no use in waiting any longer; "" if there is."""
        now_s, seen = self._now_s(), self._look()
        if seen[0] != self._seen[0] or seen[1] >= self._seen[1] + COMPUTED_S:
            self._moved_s, self._seen = now_s, seen
        if now_s > self._began_s + self._most_s:
            return f"the start has taken {self._most_s:g} s"
        if now_s > self._moved_s + self._idle_s:
            return f"its log stood still for {self._idle_s:g} s, and it computed nothing"
        return ""

    def _look(self) -> tuple[int, float]:
        """Bytes of the logs, and seconds of processor time."""
        size = sum(log.stat().st_size for log in self._logs if log.exists())
        return size, sum(map(_computed_s, self._pids))


def _computed_s(pid: int) -> float:
    """Processor time of a process, in seconds; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class StartedBroker(NamedTuple):
    """A broker that was started.

    Attributes:
        directory: the broker's directory, which has a record.
        poll: function that returns the exit code of the broker, None while it runs.
        log_begin: size of the log before the start, in bytes.
    """

    directory: BrokerDir
    poll: Callable[[], int | None]
    log_begin: int

    @property
    def record(self) -> BrokerRecord:
        """The record of the directory."""
        record = self.directory.read_record()
        assert record is not None
        return record

    def error(self, what: str) -> BrokerStartError:
        """An error that quotes the broker's log."""
        return BrokerStartError(
            what,
            detail=self.directory.failure_lines(self.log_begin),
            hint=f"the full log is {self.directory.log_path}",
        )


def await_ready(
    started: Sequence[StartedBroker],
    *,
    nodes: Collection[int] | None = None,
    timeout_s: float | None = None,
) -> None:
    """Returns when each broker answers a metadata request with its own cluster id and all `nodes`.

    Args:
        started: the brokers.
        nodes: ids of the brokers that the metadata must show; by default those of `started`.
        timeout_s: time-out of the start of all; by default they are waited for as long as they make
            progress (`StartProgress`).

    Raises:
        BrokerStartError: a broker ended or gave no answer in time; quotes its log.
    """
    nodes = nodes or [each.record.node_id for each in started]
    progress = StartProgress(
        [each.directory.log_path for each in started],
        [each.record.pid or 0 for each in started],
        idle_s=IDLE_S if timeout_s is None else timeout_s,
        most_s=START_S_MAX if timeout_s is None else timeout_s,
    )
    waiting = list(started)
    while True:
        for each in started:
            if (code := each.poll()) is not None:
                broker = each.record.title if each.record.brokers > 1 else _only(each.record)
                raise each.error(f"{broker} ended with code {code} while it started")
        waiting = [each for each in waiting if not _answers(each.record, nodes)]
        if not waiting:
            return
        if stalled := progress.stalled():
            late = waiting[0]
            raise late.error(f"{late.record.title} gave no answer: {stalled}")
        time.sleep(POLL_S)


def ensure_offsets_topic(bootstrap: str) -> None:
    """Creates the topic of committed offsets, which acknowledges with two of three in sync.

    Kafka has no broker property for that number: the topic that a broker creates has the default of
    all topics. Does nothing if the topic exists.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic(
        _OFFSETS_TOPIC,
        INTERNAL_PARTITIONS,
        REPLICAS_MAX,
        config={
            "min.insync.replicas": "2",
            # As the broker creates the topic.
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(100 * 1024 * 1024),
        },
    )
    for attempt in range(_CREATION_ATTEMPTS):
        try:
            admin.create_topics([topic])[_OFFSETS_TOPIC].result(_CREATION_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            # After a start of some of the brokers, the others may still name a dead controller.
            if attempt == _CREATION_ATTEMPTS - 1:
                raise
        else:
            return


def _only(record: BrokerRecord) -> str:
    return f"the broker of cluster {record.name}"


def _answers(record: BrokerRecord, nodes: Collection[int]) -> bool:
    # While nothing listens, librdkafka logs errors and backs off, so try a plain connection first.
    try:
        socket.create_connection((HOST, record.port), timeout=_METADATA_TIMEOUT_S).close()
    except OSError:
        return False
    admin = AdminClient({"bootstrap.servers": record.bootstrap, "log_level": 0})
    try:
        metadata = admin.list_topics(timeout=_METADATA_TIMEOUT_S)
    except KafkaException:
        return False
    return set(nodes) <= set(metadata.brokers) and metadata.cluster_id == record.cluster_id
