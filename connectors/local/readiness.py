"""When a broker that was started may be used.

*Source*: kafka.md 1: ready means that a metadata request is answered.
"""

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
    """Returns when the broker of `directory` answers a metadata request as the cluster it is.

    Args:
        directory: the broker's; it has a record.
        poll: the exit code of the broker, None while it lives.
        log_begin: size of the log before the start, in bytes.
        timeout_s: how long to wait.

    Raises:
        BrokerStartError: it died or gave no answer in time; quotes its log.
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
    # librdkafka backs off and logs while nothing listens: ask it only once something does.
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
