"""The failures of local brokers; each message names the next step."""

from stilltide.connectors.errors import FatalError


class JavaMissingError(FatalError):
    """No Java that can run the broker was found."""


class JarsError(FatalError):
    """The locked jars could not be fetched, or differ from the lock."""


class PortTakenError(FatalError):
    """Another process listens on a port that the cluster needs."""


class DataDirInUseError(FatalError):
    """A running broker holds the data directory."""


class BrokerStartError(FatalError):
    """The broker died, or gave no answer in time, while it started."""


class BrokerDownError(FatalError):
    """The operation needs a running broker."""


class BrokerCountError(FatalError):
    """The data directory is that of a cluster with another number of brokers."""


class KafkaVersionError(FatalError):
    """No broker of that Kafka version can be started, or none that reads the data directory."""


class SparkVersionError(FatalError):
    """There is no Kafka source for this version of Spark, or no Spark."""
