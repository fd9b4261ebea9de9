"""Waits until a started broker is ready: until it answers a metadata request."""

import socket
import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from stilltide.connectors.local.broker import HOST, BrokerDir, BrokerRecord
from stilltide.connectors.local.errors import BrokerStartError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.02
_METADATA_TIMEOUT_S = 2.0


def await_ready(
    directory: BrokerDir,
    poll: Callable[[], int | None],
    *,
    log_begin: int,
    timeout_s: float = START_TIMEOUT_S,
) -> None:
    """Returns when the broker of `directory` answers a metadata request with its own cluster id.

    Args:
        directory: the broker's directory, which has a record.
        poll: function that returns the exit code of the broker, None while it runs.
        log_begin: size of the log before the start, in bytes.
        timeout_s: time-out of the start.

    Raises:
        BrokerStartError: the broker ended or gave no answer in time; quotes its log.
    """
    record = directory.read_record()
    assert record is not None
    deadline = time.monotonic() + timeout_s
    while (code := poll()) is None:
        if _answers(record):
            return
        if time.monotonic() > deadline:
            raise BrokerStartError(
                f"cluster {record.name} gave no answer within {timeout_s:g} s",
                detail=directory.last_lines(log_begin),
                hint=f"the full log is {directory.log_path}",
            )
        time.sleep(POLL_S)
    raise BrokerStartError(
        f"the broker of cluster {record.name} ended with code {code} while it started",
        detail=directory.last_lines(log_begin),
        hint=f"the full log is {directory.log_path}",
    )


def _answers(record: BrokerRecord) -> bool:
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
    return bool(metadata.brokers) and metadata.cluster_id == record.cluster_id
