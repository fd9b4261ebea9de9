"""Native Kafka transactions in the topics of the clients: commits, aborts, and some that hang."""

import asyncio

from stilltide.connectors.ports.copying import Copies, Span
from stilltide.schemas.values import TopicPartition
from tests.simulation.history import History, Place, Transaction, Write
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.plan import Act, Other
from tests.simulation.workload.errands import Errands


class Natives:
    """A program with a transactional producer.

    Args:
        other: the program and its transactions.
        history: the history of the world.
    """

    def __init__(self, other: Other, history: History) -> None:
        self._errands = Errands(other)
        self._history = history

    async def run(self, connector: NetworkConnector) -> None:
        """Does the transactions that no earlier process has begun."""
        await self._errands.run(lambda act: self._transaction(act, connector))

    async def _transaction(self, act: Act, connector: NetworkConnector) -> None:
        name = self._errands.other.name
        begun_s = asyncio.get_running_loop().time()
        txn = Transaction(f"native {name} {act.number}", begun_s, cluster=connector.cluster)
        self._history.transactions.append(txn)
        writer = connector.copy_writer(name)
        try:
            await writer.fence()
            await writer.begin()
            for number, (topic, partition) in enumerate(act.writes):
                value = b"%s %d.%d" % (name.encode(), act.number, number)
                txn.writes.append(Write(Place(connector.cluster, topic, partition), value))
                copies = Copies([None], [value], [0], [[]])
                await writer.copy(TopicPartition(topic, partition), copies, Span())
            await asyncio.sleep(act.for_s)
            if act.kind == "commit":
                txn.outcome = "unknown"
                await writer.flush()
                await writer.commit(())
                txn.outcome, txn.ended_s = "committed", asyncio.get_running_loop().time()
        finally:
            await writer.close()  # aborts what is open
