"""What can keep a local broker from running, each with the next step.

*Source*: system.md, What bad input gets.
"""

from stilltide.connectors.errors import FatalError


class JavaMissingError(FatalError):
    """No Java that can run the broker was found."""


class JarsError(FatalError):
    """The locked jars could not be had."""


class PortTakenError(FatalError):
    """Another process listens on a port that the cluster was told to use."""


class DataDirInUseError(FatalError):
    """A running broker holds the data directory."""


class BrokerStartError(FatalError):
    """The broker died, or gave no answer in time, while it started."""


class BrokerDownError(FatalError):
    """The operation needs a running broker."""
