"""The end of one transaction, and its place among the open ones of its client until then.

*Source*: docs/protocols C6, C9, C12, C13, G2, L4.

*Invariants*: a transaction that is used is counted, and hears of topics that are created again. Its
end is told once, however it comes: to subscriptions, whose messages come again unless it committed,
and to the client, whose next transaction may begin.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from stilltide.pipeline.client.cluster import ClientCluster, OpenTransaction
from stilltide.pipeline.client.deciding_database import DecidingDatabase
from stilltide.pipeline.client.topics import TransactionTopics
from stilltide.pipeline.client.transaction_acks import TransactionAcks
from stilltide.pipeline.client.transaction_records import TransactionRecords
from stilltide.pipeline.client.transaction_registration import TransactionRegistration
from stilltide.pipeline.client.usage import AwaitedCalls
from stilltide.pipeline.core.coordinator.client_transaction import (
    AbortFailed,
    AskDecision,
    AskEnd,
    AskEndAgain,
    AskOutcome,
    AskPrepare,
    ClientTransaction,
    Collect,
    DropRecords,
    EndEffect,
    Ending,
    LookAtTopics,
    ReadEndOffset,
    ToSettle,
)
from stilltide.pipeline.errors import (
    DecidedOtherwiseError,
    OutcomeUnknownError,
    RequestTimeoutError,
    TransactionStateError,
)
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.transactions import Answer, End, EndPrepared, Prepare
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import TxnId

log = get_logger(__name__)

T = TypeVar("T")

ABORTED = "the transaction that acknowledged the message was aborted"


class TransactionEnd:
    """Carries out what the machine of one transaction asks for.

    Args:
        cluster: the client's connections.
        machine: the transaction.
        timeout_ms: the transaction's time-out.
        topics: the topics that it has used.
        records: its records.
        acks: its acknowledgements.
        registration: registers it with what it uses.
        calls: calls of the application that have to end before a commit.

    Attributes:
        entered: whether the transaction was used.
        why: the reason of an end without commit, for messages that come again.
    """

    def __init__(
        self,
        cluster: ClientCluster,
        machine: ClientTransaction,
        *,
        timeout_ms: int,
        topics: TransactionTopics,
        records: TransactionRecords,
        acks: TransactionAcks,
        registration: TransactionRegistration,
        calls: tuple[AwaitedCalls, ...],
    ) -> None:
        self.entered = False
        self.why = ABORTED
        self._cluster = cluster
        self._machine = machine
        self._timeout_ms = timeout_ms
        self._topics = topics
        self._records = records
        self._acks = acks
        self._registration = registration
        self._calls = calls
        self._asked_s = 0.0
        self._over = False
        self._token_id = ""
        self._database: DecidingDatabase | None = None  # that the transaction is enlisted with
        # Not longer than it is open: a cycle would be left to the garbage collector.
        self._counted: OpenTransaction | None = None

    async def enter(self, txn: OpenTransaction) -> None:
        """Counts the transaction, at its first use; waits while too many are open."""
        if self.entered:
            return
        self.entered = True
        self._registration.trace.begin()
        await self._cluster.enter(txn)
        self._counted = txn
        if self._over:  # it was aborted while it waited
            self._leave()

    def ended(self, *, committed: bool) -> None:
        """The transaction has committed, or it has not, or nobody knows. Later calls do nothing."""
        if self._over:
            return
        self._over = True
        self._registration.trace.ended(self._machine.state)
        self._acks.ended(None if committed else self.why)
        self._records.ended()
        self._leave()

    def named(self, token_id: str) -> None:
        """A row may name the transaction, which commits only if it is prepared from now on (L4)."""
        self._token_id = token_id

    def prepared(self, token_id: str, database: DecidingDatabase | None) -> None:
        """The transaction is prepared: others may begin; its messages wait for the decision.

        Args:
            token_id: name of the prepared transaction.
            database: decides alone; None: the program decides.
        """
        self._token_id, self._database = token_id, database
        self._registration.trace.event("prepared")
        self._records.ended()
        self._leave()

    async def decide(self, *, committed: bool, wait_visible: bool = False) -> None:
        """Commits or aborts, as the application asks; an enlisted one as its database says (L4).

        Raises:
            TransactionStateError: its name was asked for, and it was not prepared; it is aborted.
            DecidedOtherwiseError: the opposite stands.
            OutcomeUnknownError: the database does not say.
            StilltideError: as `carry_out` raises.
        """
        if committed and self._token_id and self._machine.state == "open":
            # The database may have refused the row, and roll back in silence when it commits.
            await self.carry_out(self._machine.abort())
            raise TransactionStateError(
                f"transaction {self._begun} was to be prepared, and was not; it is aborted",
                hint="let the error of `enlist` leave the blocks, and do the work again",
            )
        says = await self._asked(committed=committed)
        await self._carry_out(committed=says, wanted=committed, wait_visible=wait_visible)
        if (self._machine.state == "committed") != committed:
            raise self._decided_otherwise(committed=says)

    async def leave_prepared(self, error: BaseException | None) -> None:
        """The block of a prepared transaction was left: ends one that is enlisted (L4).

        Args:
            error: what leaves the block; nothing is raised then. Nothing is waited for either if
                the block was cancelled.

        Raises:
            OutcomeUnknownError: the database does not say whether it has committed.
            DecidedOtherwiseError: the database has committed, and somebody else has aborted.
        """
        name, failed = str(self._machine.id), error is not None
        if self._database is None or (failed and not isinstance(error, Exception)):
            hint = "its token, its decider or an operator decides"
            log.warning("transaction_stays_prepared", transaction=name, hint=hint)
            self._registration.trace.ended("prepared")
            return
        try:
            committed = await self._asked(committed=not failed)
        except OutcomeUnknownError as unknown:
            log.warning("transaction_stays_prepared", transaction=name, hint=unknown.detail)
            if not failed:
                raise
            return
        if committed == failed:
            event = "database_committed" if committed else "database_rolled_back"
            log.warning(event, transaction=name, why=self.why if failed else "no error was raised")
        try:
            await self._carry_out(committed=committed, wanted=not failed)
        except (RequestTimeoutError, OutcomeUnknownError) as failure:
            log.warning("decision_left", transaction=name, why=failure.primary)
        except StilltideError as failure:
            if not failed:
                raise
            log.warning("decision_failed", transaction=name, why=str(failure))

    async def _asked(self, *, committed: bool) -> bool:
        """What the database says of an enlisted transaction, or else what is asked for."""
        database = self._database
        if database is None or self._machine.state != "prepared":
            return committed
        try:
            return await database.committed(self._token_id, likely=committed)
        except StilltideError as error:
            name = database.decider.name
            raise OutcomeUnknownError(
                f"whether the database {name} has committed with transaction {self._begun} is"
                " unknown",
                detail=str(error),
                hint="a resolver ends the transaction as the database says; leave the block of the "
                "database transaction before that of `client.transaction()`",
            ) from error

    async def _carry_out(
        self,
        *,
        committed: bool,
        wanted: bool,
        wait_visible: bool = False,
    ) -> None:
        """As the database says; raises if the coordinator has taken another decision before."""
        machine = self._machine
        try:
            await self.carry_out(
                machine.commit(wait_visible=wait_visible) if committed else machine.abort()
            )
        except DecidedOtherwiseError as error:
            # A resolver has committed, and has deleted the row: the records are visible as wanted.
            if committed or not (wanted and error.committed):
                raise

    def _decided_otherwise(self, *, committed: bool) -> DecidedOtherwiseError:
        done = "has committed" if committed else "has not committed, and will not"
        error = DecidedOtherwiseError(
            f"transaction {self._begun} is {self._machine.state}, since the database {done}",
            hint="look at the row before you do the work again",
        )
        error.committed = committed
        return error

    def _leave(self) -> None:
        if (txn := self._counted) is not None:
            self._counted = None
            self._cluster.leave(txn)

    async def carry_out(self, ending: Ending) -> None:
        """Carries out a commit or an abort; raises as `Transaction.commit` and `abort`."""
        effect = next(ending)
        try:
            while True:
                try:
                    result = await self._result(effect)
                except StilltideError as error:
                    effect = ending.throw(error)
                else:
                    effect = ending.send(result)
        except StopIteration:
            return
        except BaseException as error:
            self._registration.trace.failed(error)
            raise
        finally:
            ending.close()
            if self._machine.over:
                self.ended(committed=self._machine.state == "committed")

    async def _result(self, effect: EndEffect) -> object:  # noqa: PLR0911 - one for each effect
        match effect:
            case Collect():
                return await self._collect()
            case AskEnd(request, opens_ahead) | AskPrepare(request, opens_ahead):
                return await self._ask_end(request, opens_ahead=opens_ahead)
            case DropRecords():
                self._records.discard_held()
                await self._registration.stopped()
                return self._to_settle()
            case ReadEndOffset(data):
                return await self._cluster.end_offset(data)
            case LookAtTopics(error):
                return await self._topics.look_after(error)
            case AskEndAgain(end):
                return await self._in_time(self._cluster.ask(self._begun.coordinator, end))
            case AskOutcome():
                return await self._in_time(self._cluster.outcome(self._begun))
            case AskDecision(decision):
                self._registration.trace.event(_step(decision))
                return await self._cluster.end_prepared(self._begun.coordinator, decision)
            case AbortFailed(error):
                return log.warning(
                    "abort_failed", transaction=str(self._machine.id), why=error.primary
                )

    async def _collect(self) -> ToSettle:
        for calls in self._calls:
            calls.check()
        await self._registration.finished()
        await self._records.flush()
        await self._acks.gathered()
        return self._to_settle()

    def _to_settle(self) -> ToSettle:
        return ToSettle(bool(self._acks), self._acks.ended_in)

    async def _ask_end(self, request: End | Prepare, *, opens_ahead: bool) -> Answer:
        if opens_ahead:
            self._cluster.pool.ending(
                self._timeout_ms, self._machine.writes, self._acks.subscriptions
            )
        for data, _, end_offset, _ in request.written:
            self._cluster.topics.ended(data, self._machine.writes[data].topic_id, end_offset)
        self._asked_s = asyncio.get_running_loop().time()
        self._registration.trace.event(_step(request))
        return await self._cluster.ask(self._begun.coordinator, request)

    async def _in_time(self, asking: Coroutine[Any, Any, T]) -> T:
        """The answer, if it comes within the time of the request to end."""
        try:
            async with asyncio.timeout_at(self._asked_s + self._cluster.options.request_timeout_s):
                return await asking
        except TimeoutError as error:
            raise RequestTimeoutError("the coordinator did not say in time") from error

    @property
    def _begun(self) -> TxnId:
        assert self._machine.id is not None, "an end is asked for of what has begun"
        return self._machine.id


def _step(request: End | EndPrepared | Prepare) -> str:
    """The name of a step in the trace of a transaction."""
    if isinstance(request, Prepare):
        return "prepare"
    return "commit" if request.committed else "abort"
