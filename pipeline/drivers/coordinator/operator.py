"""Asks the coordinators of a cluster for an operator: one coordinator, or all of them.

*Source*: docs/protocols B8, C1, C10, C15; Pulsar's admin API of transactions.
*Invariants*: the result names a coordinator that did not answer, and never leaves it out.
"""

from collections.abc import Mapping
from types import MappingProxyType

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.service.ask.requests import COORDINATOR_OPERATOR_SERVICE, OwnerLine
from stilltide.pipeline.errors import (
    CompactedTopicError,
    DecidedOtherwiseError,
    OutcomeUnknownError,
    RefusedError,
)
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AddPartitions,
    AddSubscriptions,
    Answer,
    CoordinatorStats,
    Decide,
    Describe,
    DescribeCoordinator,
    Description,
    End,
    EndPrepared,
    Hello,
    Listed,
    ListTransactions,
    Open,
    Prepare,
    Release,
    RequestBody,
    Unknown,
    WriteBarrier,
)
from stilltide.schemas.service.envelopes import RefusalCode, Refused
from stilltide.schemas.topics import TXN_LOG
from stilltide.schemas.values import TxnId

_HINTS = MappingProxyType(
    {
        RefusalCode.ILLEGAL: "see what the coordinator knows: `stilltide txn list`",
        RefusalCode.NOT_OWNER: "only the client that opened a transaction may change it; an "
        "operator ends it by `stilltide txn abort`",
        RefusalCode.LIMIT: "end what is open and try again, or raise the limit in the settings of "
        "all workers",
        RefusalCode.OPERATORS_ONLY: "ask by the command line, as a principal with an operator's "
        "rights: `stilltide acl print --component operator`",
        RefusalCode.UNSUPPORTED: "clients and workers have different versions: compare "
        "`stilltide --version` of both",
        RefusalCode.MALFORMED: "",
        RefusalCode.PREPARED: "a holder of its token ends it, or an operator: `stilltide txn "
        "commit|abort --prepared ID --reason TEXT`",
        RefusalCode.COMMITTED: "the first decision stands; see `stilltide txn describe ID`",
        RefusalCode.ABORTED: "the first decision stands; see `stilltide txn describe ID`",
        RefusalCode.COMPACTED: "`stilltide topics check` lists the topics that compact",
    }
)

_VERBS: Mapping[type, str] = MappingProxyType(
    {
        Open: "open a transaction",
        AddPartitions: "register",
        AddSubscriptions: "register",
        End: "end",
        Abort: "abort",
        Prepare: "prepare",
        EndPrepared: "end prepared",
        Decide: "end prepared",
        Release: "release transactions that were opened ahead",
        Describe: "describe",
        ListTransactions: "list its transactions",
        DescribeCoordinator: "tell its figures",
        WriteBarrier: "write a barrier",
        Hello: "name a direct line",
    }
)

_KINDS: Mapping[RefusalCode, type[RefusedError]] = MappingProxyType(
    {
        RefusalCode.COMPACTED: CompactedTopicError,
        RefusalCode.COMMITTED: DecidedOtherwiseError,
        RefusalCode.ABORTED: DecidedOtherwiseError,
    }
)

NAMED_MAX = 3
"""Partitions, or groups, that the error of a registration names."""


def refused(coordinator: int, body: RequestBody, answer: Refused) -> RefusedError:
    """The error for the refusal of a request."""
    kind = _KINDS.get(answer.code, RefusedError)
    error = kind(
        f"coordinator {coordinator} refused to {_named(coordinator, body)}: {answer.reason}",
        hint=_HINTS[answer.code],
    )
    if isinstance(error, DecidedOtherwiseError):
        error.committed = answer.code is RefusalCode.COMMITTED
    return error


def _named(coordinator: int, body: RequestBody) -> str:
    """What a request asks for, behind "refused to"."""
    verb = _VERBS[type(body)]
    match body:
        case AddPartitions(sequence, partitions):
            what = ", ".join(str(it.data) for it in partitions[:NAMED_MAX])
            verb += f" {what} with"
        case AddSubscriptions(sequence, subscriptions):
            what = ", ".join(map(str, subscriptions[:NAMED_MAX]))
            verb += f" {what} with"
        case (
            End(sequence, committed)
            | EndPrepared(sequence, committed)
            | Decide(sequence, committed)
        ):
            verb = "commit" if committed else "abort"
        case Abort(sequence) | Describe(sequence) | Prepare(sequence):
            pass
        case _:
            return verb
    return f"{verb} transaction {TxnId(coordinator, sequence)}"


class Coordinators(OwnerLine[RequestBody, Answer]):
    """An asynchronous context manager that asks coordinators; see `OwnerLine`.

    Args:
        connector: the cluster.
        request_timeout_s: the longest wait for one answer.
    """

    def __init__(self, connector: Connector, *, request_timeout_s: float) -> None:
        super().__init__(
            COORDINATOR_OPERATOR_SERVICE,
            TXN_LOG,
            connector,
            request_timeout_s=request_timeout_s,
        )

    async def ask(self, owner: int, body: RequestBody) -> Answer:
        """One coordinator's answer.

        Raises:
            RefusedError: there is no such coordinator, or it refused; nothing was changed.
            RequestTimeoutError: no answer in time; the request may still be carried out.
            OutcomeUnknownError: the request may have been carried out.
        """
        if not 0 <= owner < self.count:
            raise RefusedError(
                f"there is no coordinator {owner}",
                detail=f"this cluster has {self.count}, counted from 0",
            )
        answer = await super().ask(owner, body)
        if isinstance(answer, Refused):
            raise refused(owner, body, answer)
        if isinstance(answer, Unknown):
            raise OutcomeUnknownError(
                "the coordinator does not remember whether the request took effect",
                hint="look before you ask again: `stilltide txn list`",
            )
        return answer

    async def ask_each(self, body: RequestBody) -> dict[int, Answer | None]:
        """Every coordinator's answer, by number; None: no answer in time."""
        return await self.each(lambda coordinator: self.ask(coordinator, body))

    async def transactions(self, coordinator: int) -> list[Description]:
        """The transactions of one coordinator that have not ended, by sequence; raises as `ask`.

        The coordinator is asked page by page: one that ends or begins meanwhile may be shown.
        """
        found: list[Description] = []
        page = Listed((), 0, 0)
        while True:
            answer = await self.ask(coordinator, ListTransactions(page.next_sequence))
            assert isinstance(answer, Listed)
            page = answer
            found += page.transactions
            if not page.next_sequence:
                return found

    async def transactions_of_each(self) -> dict[int, list[Description] | None]:
        """The transactions of each coordinator, by number; None: no answer in time."""
        return await self.each(self.transactions)

    async def stats(self) -> dict[int, CoordinatorStats | Refused | None]:
        """Every coordinator's figures, by number.

        A coordinator that has ended by an error refuses, with the place and the cause (B8); None:
        no answer in time.
        """

        async def one(coordinator: int) -> CoordinatorStats | Refused:
            answer = await super(Coordinators, self).ask(coordinator, DescribeCoordinator())
            assert isinstance(answer, CoordinatorStats | Refused)
            return answer

        return await self.each(one)
