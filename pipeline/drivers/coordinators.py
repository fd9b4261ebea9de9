"""Asks the coordinators of a cluster, as an operator does: one, or each of them.

*Source*: protocols.md C1; facts, pulsar.md 7.
*Invariants*: a coordinator that does not answer is named as such, never left out in silence.
"""

from types import TracebackType
from typing import Self

from connectors.base import Connector
from pipeline.drivers.owner_line import LogBounds, OwnerLine
from pipeline.drivers.requests import COORDINATOR_SERVICE
from pipeline.errors import OutcomeUnknownError, RefusedError
from schemas.topics import TXN_LOG
from schemas.transactions import Answer, Refused, Request, RequestBody, Unknown


class Coordinators:
    """Asks from entry to exit.

    Args:
        connector: the cluster.
        request_timeout_s: how long one answer may take.

    Raises:
        FatalError: on entry: the system topics do not exist.
        RetriableError: on entry: the cluster cannot be reached; names its address.
    """

    def __init__(self, connector: Connector, *, request_timeout_s: float) -> None:
        self._line: OwnerLine[RequestBody, Request, Answer] = OwnerLine(
            COORDINATOR_SERVICE, TXN_LOG, connector, request_timeout_s=request_timeout_s
        )

    async def __aenter__(self) -> Self:
        await self._line.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._line.__aexit__(kind, error, trace)

    async def ask(self, coordinator: int, body: RequestBody) -> Answer:
        """One coordinator's answer.

        Raises:
            RefusedError: there is no such coordinator, or it refused; nothing was changed.
            RequestTimeoutError: no answer in time; it may still be carried out.
            OutcomeUnknownError: it may have been carried out.
        """
        if not 0 <= coordinator < self._line.count:
            raise RefusedError(
                f"there is no coordinator {coordinator}",
                detail=f"this cluster has {self._line.count}, counted from 0",
            )
        answer = await self._line.ask(coordinator, body)
        if isinstance(answer, Refused):
            raise RefusedError("the coordinator refused the request", detail=answer.reason)
        if isinstance(answer, Unknown):
            raise OutcomeUnknownError(
                "the coordinator does not remember whether the request took effect",
                hint="look before you ask again: `stilltide txn list`",
            )
        return answer

    async def ask_each(self, body: RequestBody) -> dict[int, Answer | None]:
        """Every coordinator's answer, by number; None of one that did not answer in time."""
        return await self._line.each(lambda coordinator: self.ask(coordinator, body))

    async def log_bounds(self) -> LogBounds:
        """Start and end offset of each coordinator's log."""
        return await self._line.log_bounds()
