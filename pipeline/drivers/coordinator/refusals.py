"""The error of a request that a coordinator has refused: what was asked for, and why it is refused.

*Source*: docs/protocols C10, C16, C18. The first line says both: it is all that many logs keep.
"""

from collections.abc import Mapping
from types import MappingProxyType

from stilltide.pipeline.errors import CompactedTopicError, RefusedError
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AddPartitions,
    AddSubscriptions,
    Describe,
    DescribeCoordinator,
    End,
    Hello,
    ListTransactions,
    Open,
    RefusalCode,
    Refused,
    Release,
    RequestBody,
    WriteBarrier,
)
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
        Release: "release transactions that were opened ahead",
        Describe: "describe",
        ListTransactions: "list its transactions",
        DescribeCoordinator: "tell its figures",
        WriteBarrier: "write a barrier",
        Hello: "name a direct line",
    }
)

NAMED_MAX = 3
"""Partitions, or groups, that the error of a registration names."""


def refused(coordinator: int, body: RequestBody, answer: Refused) -> RefusedError:
    """The error for the refusal of a request."""
    kind = CompactedTopicError if answer.code is RefusalCode.COMPACTED else RefusedError
    return kind(
        f"coordinator {coordinator} refused to {_named(coordinator, body)}: {answer.reason}",
        hint=_HINTS[answer.code],
    )


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
        case End(sequence, committed):
            verb = "commit" if committed else "abort"
        case Abort(sequence) | Describe(sequence):
            pass
        case _:
            return verb
    return f"{verb} transaction {TxnId(coordinator, sequence)}"
