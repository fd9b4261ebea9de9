"""The errors of all connectors; the errors of every client library become one of them.

*Source*: ARCHITECTURE.md.
"""

from stilltide.schemas.errors import StilltideError


class ConnectorError(StilltideError):
    """Something outside the process failed.

    Attributes:
        reason: the cluster's own name of the cause, such as `INVALID_TIMESTAMP`; empty: it gave
            none.
    """

    reason: str = ""


class RetriableError(ConnectorError):
    """The call may succeed when tried again: broker away, time-out, local queue full."""


class NoBrokerError(RetriableError):
    """Nothing listens at any address of the cluster, and this process never had contact to it."""


class AnotherWriterError(RetriableError):
    """Nothing has failed: the connector's next writer goes on, in another way."""


class FencedError(ConnectorError):
    """Another owner has taken over; stop, and do not try again in this role (B4)."""


class FatalError(ConnectorError):
    """The call will not succeed when tried again: refused, misconfigured, missing."""


class InvalidTextError(FatalError, ValueError):
    """A name, an id or an option is none that a client of Kafka can take; nothing was sent."""


class RecordRefusedError(FatalError):
    """The cluster takes no such record: it was not written, nor will it be while the cause lasts.

    The cause is a wrong clock, a policy of the cluster or the size of the record.
    """


class NotAuthorizedError(FatalError):
    """The cluster does not allow this user an operation on a resource (C17).

    Attributes:
        operation: the refused operation, as Kafka names it, such as `Write`.
        resource: kind and name of the resource, such as `topic orders`.
        principal: the user as Kafka names it, or how the client logs in.
    """

    def __init__(
        self,
        primary: str,
        *,
        detail: str = "",
        hint: str = "",
        operation: str,
        resource: str,
        principal: str,
    ) -> None:
        super().__init__(primary, detail=detail, hint=hint)
        self.operation = operation
        self.resource = resource
        self.principal = principal


class MissingTopicError(FatalError):
    """A topic or partition does not exist, or a broker does not know it yet."""


class NoDecisionsTableError(FatalError):
    """The database has no table `stilltide_decisions`, or one without identity (L4)."""


class OtherTableError(FatalError):
    """The table `stilltide_decisions` is not that of the transaction; nothing is decided (L4)."""


class OffsetOutOfRangeError(FatalError):
    """The log does not hold this offset: the record was trimmed away, or never written."""


class UnreadableRecordError(FatalError):
    """This system cannot read a record; topic, partition and offset are set."""


class InvalidRecordError(RecordRefusedError):
    """The topic does not take the record: it has no key, and the topic compacts, for example."""


class ActiveGroupError(FatalError):
    """The consumer group has members, so only they can move its offsets."""
