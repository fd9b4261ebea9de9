"""What the pipeline can fail with, in one tree.

*Source*: architecture.md, Habits of the code: asserts for our own mistakes, exceptions for the
world.
"""

from stilltide.schemas.errors import StilltideError
from stilltide.schemas.topics import PREFIX


class PipelineError(StilltideError):
    """A failure of the product itself, not of what it talks to."""


class ConfigError(PipelineError):
    """A setting that is unknown, not of its type, or out of its bounds."""


class RefusedError(PipelineError):
    """Whoever was asked refused the request; nothing was changed."""


class OutcomeUnknownError(PipelineError):
    """Whether the transaction was committed is not known yet; ask again, never guess."""


class SystemTopicError(PipelineError):
    """An application named a topic that only Stilltide itself may use."""


class ClientFailedError(PipelineError):
    """A background task of a client has ended by an error that nobody foresaw: its `__cause__`."""


class TransactionStateError(PipelineError):
    """The transaction is in a state that does not allow the call."""


class RequestTimeoutError(PipelineError):
    """No answer came in time; the request may still be carried out."""


class UnavailableError(PipelineError):
    """The cluster stayed away for longer than the caller was willing to wait."""


class UndecidedError(PipelineError):
    """Reading stands at a record whose transaction has no known outcome (D2)."""


class NotAssignedError(PipelineError):
    """The group has not given this member a partition that it was told to read."""


class MarkerConflictError(PipelineError):
    """Two markers of one transaction and partition say different things."""


class LogTrimmedError(PipelineError):
    """A log lacks records that its meaning depends on, and nothing that stands for them (C8)."""


class SnapshotError(PipelineError):
    """What is known of aborted transactions has a gap; nothing is read past it (E4)."""


class SnapshotPartError(SnapshotError):
    """A snapshot names a part that is not there, or another one is in its place."""


class TopicRecreatedError(SnapshotError):
    """A snapshot's offsets belong to a former topic of the same name (E8)."""


class MarkersTrimmedError(SnapshotError):
    """Markers were deleted that no snapshot has absorbed."""


class AcknowledgementError(PipelineError):
    """A message cannot be acknowledged; nothing was changed."""


class NotDeliveredError(AcknowledgementError):
    """This member was not given the message, or has lost its partition since."""


class AlreadyAcknowledgedError(AcknowledgementError):
    """The message is acknowledged."""


class PendingAcknowledgementError(AcknowledgementError):
    """The message is acknowledged in a transaction that has not ended, or not visibly."""


class AbortedIndexError(PipelineError):
    """The index of aborted native transactions is not whole, or not of this log (F4)."""


class UnknownGroupError(PipelineError):
    """A consumer group that no cluster knows on the topic that it was asked for."""


class ReportError(PipelineError):
    """A report cannot be written."""


class LinkError(PipelineError):
    """Two clusters, or a topic on both, cannot be linked as they are; nothing was copied."""


def client_failed(cause: Exception) -> ClientFailedError:
    """The error that a client ends with when a task in its background has raised `cause`."""
    failed = ClientFailedError(
        "the client has failed",
        detail=f"a task in its background ended: {type(cause).__name__}: {cause}",
        hint="close the client, open another one, and report the detail",
    )
    failed.__cause__ = cause
    return failed


def system_topic(name: str, *, hint: str) -> SystemTopicError:
    """The error of an application that named a system topic."""
    return SystemTopicError(
        "the topic belongs to Stilltide",
        detail=f"topics whose names begin with `{PREFIX}` are system topics",
        hint=hint,
        topic=name,
    )
