"""Records of programs that know nothing of Stilltide, or misuse its topics."""

import asyncio

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.copying import Copies, Span
from stilltide.schemas.values import TopicPartition
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.plan import Act, Other
from tests.simulation.workload.errands import Errands

_MALFORMED: tuple[list[tuple[str, bytes | None]], ...] = (
    [("txn", b"short")],
    [("txn", None)],
    [("txn", bytes(16)), ("txn", bytes(16))],
)
"""Headers that name no transaction: records with them are delivered to nobody (D3)."""


class Strangers:
    """A program that writes what nobody may take for anything.

    Args:
        other: the program and its acts.
    """

    def __init__(self, other: Other) -> None:
        self._errands = Errands(other)

    async def run(self, connector: NetworkConnector) -> None:
        """Writes what no earlier process has written."""
        await self._errands.run(lambda act: self._write(act, connector))

    async def _write(self, act: Act, connector: NetworkConnector) -> None:
        name = f"{self._errands.other.name} {act.number}".encode()
        data = TopicPartition(*act.writes[0])
        if act.kind == "native":
            await self._native(connector, data, name)
            return
        headers = _MALFORMED[act.number % len(_MALFORMED)] if act.kind == "malformed" else None
        reports: asyncio.Queue[ConnectorError | None] = asyncio.Queue()
        connector.writer("stranger").append(
            data, name, lambda error, _: reports.put_nowait(error), key=name, headers=headers
        )
        await reports.get()

    async def _native(self, connector: NetworkConnector, data: TopicPartition, name: bytes) -> None:
        writer = connector.copy_writer(self._errands.other.name)
        try:
            await writer.fence()
            await writer.begin()
            await writer.copy(data, Copies([name], [name], [0], [[]]), Span())
            await writer.commit(())
        finally:
            await writer.close()
