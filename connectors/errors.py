"""The one vocabulary of connector failures; every client library's errors are mapped to it.

*Source*: architecture.md, The tree.
"""

from stilltide.schemas.errors import StilltideError


class ConnectorError(StilltideError):
    """Something outside the process failed."""


class RetriableError(ConnectorError):
    """It may succeed when tried again: broker away, time-out, local queue full."""


class FencedError(ConnectorError):
    """Another owner has taken over; stop, and do not try again in this role (B4)."""


class FatalError(ConnectorError):
    """It will not succeed when tried again: refused, misconfigured, missing."""


class OffsetOutOfRangeError(FatalError):
    """The log does not hold this offset: it was trimmed away, or never written."""


class ActiveGroupError(FatalError):
    """A consumer group has members, so nobody else can move its offsets."""
