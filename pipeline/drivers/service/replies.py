"""Gathers a worker's answers: one record for each client in one turn of the event loop.

*Source*: docs/protocols A, C1b: the client repeats a request whose answer is lost. An answer is
final once it is made (B3), so it is sent even if its owner is replaced within that turn. Its key
is the hash of the client's id, which is a secret (C15).
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.drivers.service.lines.server import LineServer
from stilltide.pipeline.drivers.service.requests import Requests
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.framing import encode_batch
from stilltide.schemas.service.client_ids import reply_key
from stilltide.schemas.topics import TXN_RESPONSES
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)


class Replies:
    """Answers on their way to txn-responses, or to the clients of this process.

    Args:
        writer: appends answers.
        askers: open clients of this process, which are answered without Kafka.
        lines: direct lines of clients; an answer goes by line where there is one (J).
        partition_count: number of partitions of txn-responses; an answer to a further one, where
            no client reads, is dropped (C10). None: not known.
    """

    def __init__(
        self,
        writer: LogWriter,
        askers: Sequence[Requests[Any, Any, Any]] = (),
        lines: LineServer | None = None,
        partition_count: int | None = None,
    ) -> None:
        self._partition_count = partition_count
        self._lines = lines or LineServer()
        self._writer = writer
        self._askers = {it.client_id: it for it in askers}
        self._waiting: dict[tuple[bytes, int], list[bytes]] = {}

    def add(self, client_id: bytes, reply_partition: int, answer: bytes) -> None:
        """Takes one serialised answer; it is sent after this turn of the loop, or by `send`."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.send)
        self._waiting.setdefault((client_id, reply_partition), []).append(answer)

    def send(self) -> None:
        """Sends the gathered answers."""
        waiting, self._waiting = self._waiting, {}
        for (client_id, partition), answers in waiting.items():
            if asker := self._askers.get(client_id):
                asyncio.get_running_loop().call_soon(asker.answers_received, answers)
                continue
            if self._lines.send(client_id, answers):
                continue
            if self._partition_count is not None and partition >= self._partition_count:
                log.warning(
                    "answers_dropped",
                    answers=len(answers),
                    why=f"{TXN_RESPONSES} has no partition {partition}",
                )
                continue
            try:
                self._writer.append(
                    TopicPartition(TXN_RESPONSES, partition),
                    encode_batch(answers),
                    _delivered,
                    key=reply_key(client_id),
                )
            except ConnectorError as error:
                log.warning("answers_dropped", answers=len(answers), why=error.primary)


def _delivered(_error: ConnectorError | None, _offset: int) -> None:
    """A client without an answer repeats its request (C1b); the writer counts failures (C17)."""
