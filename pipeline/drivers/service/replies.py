"""Gathers answers of a worker: one record per client for all that one turn of the loop answers.

*Source*: protocols.md A, C1b: an answer that is lost is asked for again. An answer is final once it
is made (B3), so it leaves even if its owner is replaced within that turn.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.drivers.service.requests import Requests
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.framing import encode_batch
from stilltide.schemas.topics import TXN_RESPONSES
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)


class Replies:
    """Answers on their way to txn-responses, or to who asks in this process.

    Args:
        writer: appends them.
        askers: in this process; they are answered without Kafka. Open already.
    """

    def __init__(self, writer: LogWriter, askers: Sequence[Requests[Any, Any, Any]] = ()) -> None:
        self._writer = writer
        self._askers = {it.client_id: it for it in askers}
        self._waiting: dict[tuple[bytes, int], list[bytes]] = {}

    def add(self, client_id: bytes, reply_partition: int, answer: bytes) -> None:
        """Takes one serialised answer; it leaves in this turn of the loop, or with `send`."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.send)
        self._waiting.setdefault((client_id, reply_partition), []).append(answer)

    def send(self) -> None:
        """Sends what is gathered."""
        waiting, self._waiting = self._waiting, {}
        for (client_id, partition), answers in waiting.items():
            if asker := self._askers.get(client_id):
                asyncio.get_running_loop().call_soon(asker.answers_received, answers)
                continue
            try:
                self._writer.append(
                    TopicPartition(TXN_RESPONSES, partition),
                    encode_batch(answers),
                    _ignored,
                    key=client_id,
                )
            except ConnectorError as error:
                log.warning("answers_dropped", answers=len(answers), why=error.primary)


def _ignored(_error: ConnectorError | None, _offset: int) -> None:
    """An answer that did not arrive is asked for again (C1b)."""
