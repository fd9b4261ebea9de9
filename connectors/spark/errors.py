"""The one place where Spark's failures become connector errors.

*Source*: connectors.errors. A Spark job reports a Kafka failure only as text from a remote JVM, so
the module reads the text.

*Invariants*: an error holds the cause in one line; Java's stacks are in the debug log.
"""

import logging
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.kafka.config import Cluster, config_of

log = logging.getLogger(__name__)

_DETAIL_CHARS_MAX = 300
_REASON_CHARS_MAX = 1200

NO_EXECUTOR = "no executor takes work"
"""Begins the reason with which `watch` ends a job."""

_STARVED = re.compile(rf"{NO_EXECUTOR}([^\n]*)")

_MISSING_CONNECTOR = ("KAFKA_DATA_SOURCE_NOT_ENABLED", "Failed to find data source: kafka")
_DATA_LOSS = (
    "KAFKA_DATA_LOSS",
    "OffsetOutOfRangeException",
    "data may have been lost",
    "data was aged out",
)
_ODD_TIME = re.compile(
    r"KAFKA_MALFORMED_RECORD_TIMESTAMP|long overflow.*?KafkaRecordToRowConverter", re.DOTALL
)
"""In the failure of a task that cannot hold a timestamp; later versions of Spark say so."""

_REFUSED = (
    "SaslAuthenticationException",
    "SslAuthenticationException",
    "LoginException",
    "InvalidConfigurationException",
    "Failed to load PEM SSL keystore",
    "Failed to load SSL keystore",
)
_AWAY = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "Timeout of",
    "Timed out waiting for a node assignment",
    "Failed to create new KafkaAdminClient",
    "Cannot fetch record for offset",
)
_CAUSE = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_CALLING = re.compile(r"\A\s*An error occurred while calling \S+\s*:\s*")
_PACKAGE = re.compile(r"^(?:[a-z0-9]+\.)+(?=[A-Z])")
_TOPICS_SHOWN = 5


@contextmanager
def spark_errors(bootstrap_servers: Cluster, topics: Sequence[str] = ()) -> Generator[None]:
    """Turns Spark's exceptions into `RetriableError` or `FatalError`, with the cause chained.

    Args:
        bootstrap_servers: the cluster that Spark reads from, or writes to.
        topics: what Spark reads or writes, for errors.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text, config = str(error), config_of(bootstrap_servers)
        log.debug("a call of Spark failed: %s", text)
        raise connector_error(text, config.bootstrap_servers, topics) from error


def connector_error(  # noqa: PLR0911 - one for each cause
    text: str, bootstrap_servers: str, topics: Sequence[str] = ()
) -> ConnectorError:
    """The typed error for the text of a Spark failure; arguments as of `spark_errors`."""
    detail = cause_of(text)
    if reason := _STARVED.search(text):
        return RetriableError(
            NO_EXECUTOR,
            detail=reason[1].strip()[:_REASON_CHARS_MAX],
            hint="executors connect to the driver: give it an address that they reach, with --conf"
            " spark.driver.host=ADDRESS, and open its ports to them (spark.driver.port,"
            " spark.driver.blockManager.port); or the cluster has no free cores or memory for them",
        )
    if _mentions(text, _MISSING_CONNECTOR):
        return FatalError(
            "spark has no Kafka source",
            detail="the jars of spark-sql-kafka-0-10 are not on the session's class path",
            hint="start the process's first Spark session with `SparkOptions(jars=spark_jars())`",
        )
    if _mentions(text, _DATA_LOSS):
        return FatalError(
            "records were deleted while they were read",
            detail=detail,
            hint="retention overtook the read: start it again, or raise the topic's retention",
        )
    if _ODD_TIME.search(text):
        return FatalError(
            "Spark cannot hold the timestamp of a record",
            detail=detail,
            hint="its producer counts in nanoseconds: read from behind the record (`start`), or set"
            " message.timestamp.after.max.ms on the topic, so that brokers refuse such records",
        )
    if _mentions(text, _REFUSED):
        return FatalError(
            f"Kafka at {bootstrap_servers} refused Spark's login, or Spark the TLS files",
            detail=detail,
            hint="check the settings of TLS and SASL: stilltide config show --origin",
        )
    if _mentions(text, _AWAY):
        of_topics = f" while Spark was at work on {_named(topics)}" if topics else ""
        return RetriableError(
            f"no broker answers Spark at {bootstrap_servers}",
            detail=f"the cluster was lost{of_topics}: {detail}",
            hint="check that its brokers run and are reachable at that address; then try again",
            topic=topics[0] if len(topics) == 1 else None,
        )
    return FatalError(
        "a spark job failed", detail=detail, hint="the log has all of Spark's words at level debug"
    )


def cause_of(text: str) -> str:
    """The last cause that Java names, in one line and without its package."""
    causes = _CAUSE.findall(text) or _CALLING.sub("", text).strip().splitlines()[:1]
    line = " ".join("".join(causes[-1:]).split())
    return _PACKAGE.sub("", line)[:_DETAIL_CHARS_MAX]


def _named(topics: Sequence[str]) -> str:
    names = sorted(set(topics))
    more = len(names) - _TOPICS_SHOWN
    return ", ".join(names[:_TOPICS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def connect_error() -> FatalError:
    """The refusal of Spark Connect."""
    return FatalError(
        "Spark Connect is not supported: Stilltide needs a session whose driver is this process",
        hint="unset SPARK_REMOTE and name a master: --master spark://HOST:PORT, yarn, k8s://...",
    )


def check_argument(name: str, value: object, kind: str, attribute: str) -> None:
    """Passes an argument that has what its kind has; raises `FatalError` for another one.

    By an attribute, because classes of Spark and of Spark Connect share no base.
    """
    if not hasattr(value, attribute):
        raise FatalError(
            f"`{name}` is a {type(value).__name__}, not a {kind}", hint=f"give a {kind}"
        )


def check_session(spark: SparkSession) -> None:
    """Raises `FatalError` for a value that is no session."""
    check_argument("spark", spark, "SparkSession", "createDataFrame")


def check_classic(spark: SparkSession) -> None:
    """Raises `FatalError` for a session of Spark Connect, and for a value that is no session."""
    check_session(spark)
    if not isinstance(spark, SparkSession):
        raise connect_error()


def _mentions(text: str, marks: tuple[str, ...]) -> bool:
    return any(mark in text for mark in marks)
