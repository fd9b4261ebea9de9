"""The errors of all connectors; the errors of every client library become one of them.

*Source*: ARCHITECTURE.md.
"""

from stilltide.schemas.errors import StilltideError


class ConnectorError(StilltideError):
    """Something outside the process failed."""


class RetriableError(ConnectorError):
    """The call may succeed when tried again: broker away, time-out, local queue full."""


class FencedError(ConnectorError):
    """Another owner has taken over; stop, and do not try again in this role (B4)."""


class FatalError(ConnectorError):
    """The call will not succeed when tried again: refused, misconfigured, missing."""


class OffsetOutOfRangeError(FatalError):
    """The log does not hold this offset: the record was trimmed away, or never written."""


class ActiveGroupError(FatalError):
    """The consumer group has members, so only they can move its offsets."""
