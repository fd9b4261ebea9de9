"""The errors of the pipeline, in one tree.

*Source*: docs/internals/style.md: an assert for a mistake in this program, an exception for
everything else.
"""

from typing import Any

from stilltide.schemas.errors import StilltideError
from stilltide.schemas.topics import PREFIX


class PipelineError(StilltideError):
    """A failure of Stilltide itself, not of a broker or a client library."""


class ConfigError(PipelineError):
    """A setting that is unknown, not of its type, or out of its bounds."""


class MissingExtraError(PipelineError):
    """An extra of the package is not installed that the program's next step needs."""


class CoordinatorCountError(ConfigError):
    """The setting `coordinators` is lower than the number of coordinators that there are (C14)."""


class RefusedError(PipelineError):
    """The owner that was asked (such as a coordinator) refused the request; nothing was changed."""


class CompactedTopicError(RefusedError):
    """The topic compacts, so it holds no records of coordinated transactions (C18)."""


class DecidedOtherwiseError(RefusedError):
    """The opposite was decided of the prepared transaction; the first decision stands (L3).

    Attributes:
        committed: whether the transaction was committed.
    """

    committed: bool = False


class ActiveMembersError(RefusedError):
    """A group has members, and may not be reset; nothing was changed."""


class OutcomeUnknownError(PipelineError):
    """Whether the transaction was committed is not known yet; ask again, never guess."""


class SystemTopicError(PipelineError):
    """An application named a topic that only Stilltide itself may use."""


class ClientFailedError(PipelineError):
    """A background task of a client has ended by an unexpected error, which is the `__cause__`."""


class UsageError(PipelineError):
    """The program uses the library in a way that cannot work; nothing was sent."""


class ArgumentError(UsageError, TypeError):
    """An argument has a type that cannot be sent."""


class SerializerError(PipelineError):
    """A serializer has failed, and nothing was sent; or what a deserializer asks does not answer.

    A `send` that raises it leaves the transaction as it was. A subscription that raises it stays
    before the record, and the next call tries again.

    Attributes:
        field: `key` or `value`.
    """

    field: str = ""


class UndecodableError(PipelineError):
    """A deserializer has refused a record, which counts as returned: this error returns it.

    Attributes:
        field: `key` or `value`.
        record: the message as it was read, with key and value as bytes, to acknowledge it.
    """

    field: str = ""
    record: Any = None


class NotOpenError(UsageError, TypeError):
    """The client, subscription or cluster is not entered yet, or is closed already."""


class NotAwaitedError(UsageError):
    """A commit would lose something: a `send` or `acknowledge` was not awaited."""


class OtherLoopError(UsageError):
    """The call is on another event loop than the one on which the object was opened."""


class ForkedError(UsageError):
    """The call is in a process that was forked after the object was opened."""


class TransactionStateError(PipelineError):
    """The transaction is in a state that does not allow the call."""


class RequestTimeoutError(PipelineError):
    """No answer came in time; the request may still be carried out."""


class OwnerEndedError(RequestTimeoutError):
    """The owner that was asked has ended by an error, which is named; it is tried again (B8)."""


class UnavailableError(PipelineError):
    """The cluster was away for longer than the caller's limit."""


class UndecidedError(PipelineError):
    """The reader waits at a record whose transaction has no known outcome (D2)."""


class NoTopicError(PipelineError):
    """No topic of the cluster fits a pattern of a subscription (D8)."""


class NotAssignedError(PipelineError):
    """The group has not given this member a partition that it was asked to read."""


class MarkerConflictError(PipelineError):
    """Two markers of one transaction and partition have different outcomes."""


class LogTrimmedError(PipelineError):
    """A log lacks records of its state, and has no base that replaces them (C8)."""


class HistoryCutError(PipelineError):
    """More ended transactions were asked for than the markers that are read tell of (E9)."""


class SnapshotError(PipelineError):
    """The aborted transactions are not all known; readers do not pass the gap (E4)."""


class SnapshotPartError(SnapshotError):
    """A part that a snapshot names is missing or another one, or there are parts and no end."""


class TopicRecreatedError(SnapshotError):
    """A topic was deleted and created again: offsets of the former topic mean nothing (E8, C13)."""


class MarkersTrimmedError(SnapshotError):
    """Markers were deleted that no snapshot has absorbed."""


class NoDatabaseTransactionError(UsageError):
    """No database transaction holds the row that decides; nothing was prepared (L4)."""


class DecidedError(PipelineError):
    """The database says already how the prepared transaction ends; no row was inserted (L4)."""


class AcknowledgementError(PipelineError):
    """The message cannot be acknowledged; nothing was changed."""


class NotDeliveredError(AcknowledgementError):
    """The message was not delivered to this member, or the member has lost the partition since."""


class OtherClusterError(AcknowledgementError):
    """The message is from another cluster than the transaction that acknowledges it (C11)."""


class AlreadyAcknowledgedError(AcknowledgementError):
    """The message is acknowledged already."""


class PendingAcknowledgementError(AcknowledgementError):
    """The message is acknowledged in a transaction that has not ended, or not visibly."""


class DeadLetterError(PipelineError):
    """A dead letter cannot be moved as it is, or there is none at the place."""


class AbortedIndexError(PipelineError):
    """The index of aborted native transactions is incomplete, or belongs to another log (F4)."""


class UnknownGroupError(PipelineError):
    """No cluster knows the consumer group on the given topic."""


class ReportError(PipelineError):
    """The report cannot be written."""


class LinkError(PipelineError):
    """Two clusters, or a topic on both, cannot be linked as they are; nothing was copied."""


class KeylessRecordError(PipelineError):
    """A partition of a link waits at a record without key, which its target refuses (H10)."""


class PublishError(LinkError):
    """Two topics of a cluster cannot be source and target of a publish as they are (H7)."""


def error_text(error: str | BaseException) -> str:
    """The text of an error for people: what an application gave, or the exception's."""
    if isinstance(error, str):
        return error
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def client_failed(cause: Exception) -> ClientFailedError:
    """The error of a client whose background task has raised `cause`."""
    failed = ClientFailedError(
        "the client has failed",
        detail=f"a background task ended: {type(cause).__name__}: {cause}",
        hint="close the client, open another one, and report the detail",
    )
    failed.__cause__ = cause
    return failed


def topic_recreated(topic: str, before: bytes, now: bytes, *, hint: str) -> TopicRecreatedError:
    """The error for a topic whose id is no longer the one that was read or written (C13).

    Args:
        topic: name of the topic.
        before: Kafka's id of the topic that was read or written.
        now: Kafka's id of the topic that has the name now.
        hint: the next step.
    """
    return TopicRecreatedError(
        "the topic was deleted, and another one was created under its name",
        detail=f"the topic id was {before.hex()} and is {now.hex()}",
        hint=hint,
        topic=topic,
    )


def compacted_topic(name: str) -> CompactedTopicError:
    """The error of a transaction that writes to a topic that compacts (C18)."""
    return CompactedTopicError(
        "the topic compacts, and an aborted record would delete the committed value of its key",
        detail=f"cleanup.policy of {name} has `compact`; Kafka's cleaner knows no coordinated "
        "transactions, and keeps the newest record of a key whatever became of its transaction",
        hint="write to a topic that only deletes, and copy what is committed to the compacted one "
        "with `stilltide publish`; `allow_compacted=True` is for topics whose keys are never "
        "written again",
        topic=name,
    )


def system_topic(name: str, *, hint: str) -> SystemTopicError:
    """The error of an application that named a system topic."""
    return SystemTopicError(
        "the topic belongs to Stilltide",
        detail=f"topics whose names begin with `{PREFIX}` are system topics",
        hint=hint,
        topic=name,
    )


class TableError(PipelineError):
    """A table cannot be written on: it is of other topics, damaged, or not writable (K)."""


class BatchError(PipelineError):
    """A batch of Spark was not written, or its progress is of another target (L9)."""
