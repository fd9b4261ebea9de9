"""Asks coordinators for anything: as a client about its own transactions, else as an operator."""

from types import TracebackType
from typing import Self

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.coordinator.operator import Coordinators, refused
from stilltide.pipeline.drivers.service.ask.requests import (
    COORDINATOR_OPERATOR_SERVICE,
    COORDINATOR_SERVICE,
    CoordinatorRequests,
    Requests,
)
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    AddSubscriptions,
    Answer,
    End,
    EndPrepared,
    Open,
    Prepare,
    Release,
    RequestBody,
)
from stilltide.schemas.service.envelopes import Refused

_OF_CLIENTS = Open | AddPartitions | AddSubscriptions | End | EndPrepared | Prepare | Release


class Asker:
    """One client of coordinators, who is an operator, too; `open` first, `close` last.

    Attributes:
        client: the requests of the client.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        name: str = "asker",
        timeout_s: float = 10.0,
        resend_s: float = 0.2,
    ) -> None:
        self._writer = connector.writer(name)

        def requests(service: object) -> CoordinatorRequests:
            return Requests(
                service,
                connector,
                self._writer,
                name=name,
                request_timeout_s=timeout_s,
                resend_s=resend_s,
            )

        self.client = requests(COORDINATOR_SERVICE)
        self._operator = requests(COORDINATOR_OPERATOR_SERVICE)

    async def open(self, *, partition_count: int, response_partition_count: int) -> None:
        """Begins to read answers."""
        for one in (self.client, self._operator):
            await one.open(
                partition_count=partition_count,
                response_partition_count=response_partition_count,
            )

    async def close(self) -> None:
        """Stops to read answers."""
        await self.client.close()
        await self._operator.close()
        await self._writer.close()

    async def ask(self, coordinator: int, body: RequestBody) -> Answer:
        """One coordinator's answer."""
        line = self.client if isinstance(body, _OF_CLIENTS) else self._operator
        return await line.ask(coordinator, body)


class AskingCoordinators(Coordinators):
    """`Coordinators` that take the requests of a client, too."""

    def __init__(self, connector: Connector, *, request_timeout_s: float, partitions: int) -> None:
        super().__init__(connector, request_timeout_s=request_timeout_s)
        self._partitions = partitions
        self._asker = Asker(connector, timeout_s=request_timeout_s, resend_s=1.0)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self._asker.open(
            partition_count=self.count, response_partition_count=self._partitions
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._asker.close()
        await super().__aexit__(kind, error, trace)

    async def ask(self, owner: int, body: RequestBody) -> Answer:
        """One coordinator's answer; raises as `Coordinators.ask`."""
        if not isinstance(body, _OF_CLIENTS):
            return await super().ask(owner, body)
        answer = await self._asker.ask(owner, body)
        if isinstance(answer, Refused):
            raise refused(owner, body, answer)
        return answer
