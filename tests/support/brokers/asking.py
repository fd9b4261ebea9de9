"""An admin that asks without end about topics and offsets: how long brokers leave it waiting."""

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.schemas.topics import TXN_LOG
from stilltide.schemas.values import TopicPartition
from tests.support.brokers.progress import Pacing, Progress
from tests.support.processes.worker_process import COORDINATORS

EVERY_S = 0.1
PATIENCE_S = 60.0
"""The admin's request time-out: who waits for a broker that has died waits this long."""


class Asking:
    """Asks about the transaction logs until `stop`; a step is a round of answers.

    Args:
        bootstrap: the cluster.
    """

    def __init__(self, bootstrap: str) -> None:
        self.progress = Progress("asking")
        self._config = KafkaConfig(bootstrap, request_timeout_s=PATIENCE_S)
        self._pacing = Pacing(EVERY_S)

    def stop(self) -> None:
        """Asks nothing more; `run` returns when the last answer has come."""
        self._pacing.stop()

    async def run(self) -> None:
        """Asks until `stop`."""
        admin = KafkaConnector(self._config).admin()
        logs = [TopicPartition(TXN_LOG, it) for it in range(COORDINATORS)]
        try:
            while await self._pacing.next():
                try:
                    assert await admin.describe_topics([TXN_LOG])
                    assert len(await admin.end_offsets(logs)) == COORDINATORS
                except RetriableError:
                    continue  # no broker answered: the gap shows it
                self.progress.step()
        finally:
            await admin.close()
