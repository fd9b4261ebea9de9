"""Asks the coordinators of a cluster for an operator: one coordinator, or all of them.

*Source*: docs/protocols C1, C15; Pulsar's admin API of transactions.
*Invariants*: the result names a coordinator that did not answer, and never leaves it out.
"""

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.coordinator.refusals import refused
from stilltide.pipeline.drivers.service.operator import OwnerLine
from stilltide.pipeline.drivers.service.requests import COORDINATOR_OPERATOR_SERVICE
from stilltide.pipeline.errors import OutcomeUnknownError, RefusedError
from stilltide.schemas.coordinator.transactions import (
    Answer,
    CoordinatorStats,
    DescribeCoordinator,
    Description,
    Listed,
    ListTransactions,
    Refused,
    Request,
    RequestBody,
    Unknown,
)
from stilltide.schemas.topics import TXN_LOG


class Coordinators(OwnerLine[RequestBody, Request, Answer]):
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
