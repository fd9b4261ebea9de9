"""Asks the owners of logs how they write; reads how transactions ended, and the lag of groups.

*Source*: PIP-160 (metrics of the buffered writer); docs/protocols E9, D.
"""

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.connector import Connector, GroupConnector
from stilltide.pipeline.core.status.asks import (
    EndedTxn,
    EndedTxns,
    LagAsk,
    Logs,
    VisibleLag,
)
from stilltide.pipeline.drivers.coordinator.history import HistoryTail
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.groups.unread import lag_of
from stilltide.pipeline.drivers.pending_ack.client import PendingAckStores
from stilltide.pipeline.drivers.status.transactions import ANSWER_S
from stilltide.pipeline.errors import PipelineError
from stilltide.schemas.coordinator.transactions import CoordinatorStats
from stilltide.schemas.log_frames import LogFigures
from stilltide.schemas.topics import PENDING_ACK_LOG, TXN_LOG
from stilltide.schemas.values import TopicPartition

LOGS_REST_S = 2.0
ENDED_REST_S = 5.0
LAG_REST_S = 30.0
"""Seconds between two counts: a count may read many records."""

ENDED_MAX = 50
"""Transactions that have ended and are shown."""

LAG_MAX = 20_000
"""Offsets of a partition after which the lag is told as `at least`."""

LAG_S = 20.0
"""Longest time that the cluster may be away while lag is counted."""


class LogsLook:
    """Asks coordinators and stores; the connections stay open between reads. See `AskedLook`.

    Args:
        connector: the cluster.
    """

    def __init__(self, connector: Connector) -> None:
        self.rest_s = LOGS_REST_S
        self._connector = connector
        self._coordinators: Coordinators | None = None
        self._stores: PendingAckStores | None = None

    async def read(self) -> Logs:
        """The figures of every log.

        Raises:
            FatalError: the system topics do not exist.
            ConnectorError, PipelineError: the cluster cannot be reached.
        """
        try:
            coordinators, stores = await self._connected()
            answers = await coordinators.stats()
            figures: dict[TopicPartition, LogFigures | None] = {
                TopicPartition(TXN_LOG, number): answer.log
                if isinstance(answer, CoordinatorStats)
                else None
                for number, answer in sorted(answers.items())
            }
            figures |= {
                TopicPartition(PENDING_ACK_LOG, number): answer and answer.log
                for number, answer in sorted((await stores.stats()).items())
            }
        except (ConnectorError, PipelineError):
            await self.close()
            raise
        return Logs(figures)

    async def close(self) -> None:
        """Releases the connections."""
        lines = self._coordinators, self._stores
        self._coordinators = self._stores = None
        for line in lines:
            if line is not None:
                await line.__aexit__(None, None, None)

    async def _connected(self) -> tuple[Coordinators, PendingAckStores]:
        if self._coordinators is None:
            line = Coordinators(self._connector, request_timeout_s=ANSWER_S)
            self._coordinators = await line.__aenter__()
        if self._stores is None:
            stores = PendingAckStores(self._connector, request_timeout_s=ANSWER_S)
            self._stores = await stores.__aenter__()
        return self._coordinators, self._stores


class EndedLook:
    """The transactions that ended last; reads on where the last read ended. See `AskedLook`.

    Args:
        connector: the cluster.
    """

    def __init__(self, connector: Connector) -> None:
        self.rest_s = ENDED_REST_S
        self._tail = HistoryTail(connector, ENDED_MAX)

    async def read(self) -> EndedTxns:
        """The last `ENDED_MAX`; raises as `ended_transactions`."""
        tail = await self._tail.read()
        return EndedTxns(
            tuple(
                EndedTxn(
                    transaction.txn,
                    transaction.outcome,
                    transaction.ended_ms,
                    transaction.record_count,
                    tuple(sorted(transaction.markers)),
                )
                for transaction in tail.transactions
            ),
            tail.cut.detail if tail.cut is not None else "",
        )

    async def close(self) -> None:
        """Releases the connections."""
        await self._tail.close()


async def group_lag(connector: GroupConnector, ask: LagAsk) -> VisibleLag:
    """The lag of a group in visible records; raises as `lag_of`."""
    lags = await lag_of(connector, ask.topic, ask.group, records_max=LAG_MAX, timeout_s=LAG_S)
    return VisibleLag(sum(it.visible for it in lags), any(it.at_least for it in lags))
