"""Writes a batch of records exactly once, through a sink that may write records twice.

*Source*: docs/protocols L9. The batch has a folder: each attempt has a number, a file with the
token of its transaction, and at most one decision, which is a file that is created once.

*Invariants*:
- at most one attempt of a batch is ever decided to commit: an attempt begins only when all earlier
  ones are decided to abort,
- a transaction is prepared only after its token is stored, so none stays prepared without a token,
- a transaction is committed only after the decision to commit stands in its file.

`write_batch` is a generator of effects: each effect is carried out, and its result is sent, or its
error thrown. A driver that stops early closes the generator; a later call goes on from the files.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from stilltide.pipeline.errors import BatchError
from stilltide.schemas.errors import StilltideError


class BatchFiles(NamedTuple):
    """What is stored of a batch.

    Attributes:
        tokens: the token of each attempt, by its number from 1 on.
        decisions: by the number of an attempt, whether it is decided to commit.
        ended: whether the batch is committed, and nothing is left to do.
        of_others: attempts of another streaming query than the one that writes now, or of the same
            query with other records.
    """

    tokens: Mapping[int, str]
    decisions: Mapping[int, bool]
    ended: bool
    of_others: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """Effect: reads what is stored of the batch; comes back as `BatchFiles`."""


@dataclass(frozen=True, slots=True)
class WriteRecords:
    """Effect: opens a transaction, writes the records, and counts those that stand.

    Every earlier attempt is decided to abort. Comes back as the token of the open transaction; or
    as None, with the transaction aborted, if not exactly the records of the batch stand.
    """


@dataclass(frozen=True, slots=True)
class KeepToken:
    """Effect: creates the file of an attempt; comes back as False if there is one already."""

    attempt: int
    token: str


@dataclass(frozen=True, slots=True)
class PrepareOpen:
    """Effect: prepares the transaction with what was counted; its token is stored."""


@dataclass(frozen=True, slots=True)
class AbortOpen:
    """Effect: aborts the transaction, which was never asked to be prepared."""


@dataclass(frozen=True, slots=True)
class KeepDecision:
    """Effect: creates the decision about an attempt, unless there is one.

    A transaction that is to be committed is prepared. Comes back as the decision that stands.
    """

    attempt: int
    committed: bool


@dataclass(frozen=True, slots=True)
class EndDecided:
    """Effect: ends the transaction of a token as decided; the decision is stored.

    An abort of what was never prepared is no error: its time-out aborts it.
    """

    token: str
    committed: bool


@dataclass(frozen=True, slots=True)
class KeepEnd:
    """Effect: stores that the batch has ended; its attempt is committed."""

    attempt: int


BatchEffect = (
    ReadFiles
    | WriteRecords
    | KeepToken
    | PrepareOpen
    | AbortOpen
    | KeepDecision
    | EndDecided
    | KeepEnd
)


class BatchOutcome(Enum):
    """What a call did; the batch is committed after each of them."""

    WRITTEN = "written"
    """The call wrote the records."""
    RESUMED = "resumed"
    """An earlier call wrote the records and decided; this one committed them."""
    REPEATED = "repeated"
    """An earlier call committed the records."""


BatchWrite = Generator[BatchEffect, Any, BatchOutcome]


def write_batch(tries: int) -> BatchWrite:
    """Writes a batch, unless an earlier call has decided it (L9).

    Args:
        tries: how often the records are written at most, >= 1.

    Raises:
        BatchError: no attempt held exactly the records of the batch, another program writes the
            same batch, or a streaming query has written other records under its number.
        StilltideError: what an effect raised.
    """
    for _ in range(tries):
        files: BatchFiles = yield ReadFiles()
        if files.ended:
            _check_query(files, *(number for number, commit in files.decisions.items() if commit))
            return BatchOutcome.REPEATED
        committed = yield from _settle(files)
        if committed is not None:
            yield KeepEnd(committed)
            _check_query(files, committed)
            return BatchOutcome.RESUMED
        attempt = max(files.tokens, default=0) + 1
        token: str | None = yield WriteRecords()
        if token is not None:
            yield from _end(attempt, token)
            return BatchOutcome.WRITTEN
    raise BatchError(
        f"the records of the batch were not written exactly once in {tries} tries",
        detail="in each try tasks of Spark failed, were killed, or wrote records twice; nothing of"
        " the tries is visible",
        hint="look at the failed tasks in Spark's UI, switch spark.speculation off, or write"
        " smaller batches; then write the batch again",
    )


def _settle(
    files: BatchFiles,
) -> Generator[BatchEffect, Any, int | None]:
    """Ends what earlier attempts have left; returns the attempt that is decided to commit."""
    committed: int | None = None
    for attempt, token in sorted(files.tokens.items()):
        decision = files.decisions.get(attempt)
        if decision is None:
            decision = yield KeepDecision(attempt, committed=False)
        yield EndDecided(token, committed=decision)
        if decision:
            committed = attempt
    return committed


def _end(attempt: int, token: str) -> Generator[BatchEffect, Any, None]:
    """Commits an attempt whose records stand; raises if another program was faster."""
    if not (yield KeepToken(attempt, token)):
        yield AbortOpen()
        raise _another()
    try:
        yield PrepareOpen()
    except StilltideError:
        # The transaction may be prepared. No decision to commit can stand: only this call makes it.
        yield KeepDecision(attempt, committed=False)
        yield EndDecided(token, committed=False)
        raise
    # An error here leaves the transaction prepared: whether the file was created is not known.
    decision = yield KeepDecision(attempt, committed=True)
    yield EndDecided(token, committed=decision)
    if not decision:
        raise _another()
    yield KeepEnd(attempt)


def _check_query(files: BatchFiles, *committed: int) -> None:
    """Raises for a batch whose number stands for other records."""
    if files.of_others.intersection(committed):
        raise BatchError(
            "a streaming query has written other records, in a batch of this number",
            detail="its checkpoint was deleted, is a new one, or was set back, as from a backup:"
            " Spark then counts again; nothing of this batch was written",
            hint="restore the latest checkpoint, or name a progress directory of its own for"
            " this query, which then writes again what it reads again",
        )


def _another() -> BatchError:
    return BatchError(
        "another program writes the same batch",
        detail="the records of this program are not visible",
        hint="run one writer for each progress directory; a further call says what became of the"
        " batch",
    )
