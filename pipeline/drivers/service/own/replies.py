"""Gathers a worker's answers: one record for each client in one turn of the event loop.

*Invariants*: a record holds at most `ANSWERS_BYTES_MAX` of answers, or one answer, so that a client
that asks for much at once cannot have a record refused for its size. At most `WAITING_BYTES_MAX` of
answers wait for their delivery, and `CLIENT_WAITING_BYTES_MAX` of one client's, and one answer.

*Source*: docs/protocols A3, C1b, J1: the client repeats a request whose answer is lost. An answer
is final once it is made (B3), so it is sent even if its owner is replaced within that turn. Its key
is the hash of the client's id, which is a secret (C15).
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.writers import Delivered, LogWriter
from stilltide.pipeline.drivers.service.ask.requests import Requests
from stilltide.pipeline.drivers.service.hindrances import Seldom
from stilltide.pipeline.drivers.service.own.direct_lines import LineServer
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.framing import encode_batch
from stilltide.schemas.service.envelopes import (
    OwnerEnded,
    Request,
    client_key,
    encode_notice,
    notice_key,
)
from stilltide.schemas.topics import TXN_RESPONSES
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)


ANSWERS_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of the answers in one record, as many as in an entry of a log."""

WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of answers that wait for their delivery; beyond, answers are dropped (C16)."""

CLIENT_WAITING_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of the large ones of them to one client: the largest answers of four stores. Beyond, the
client's answers are dropped, and not those of others."""

LARGE_BYTES = 1024
"""An answer from this size on is large. Nearly all are smaller, and are counted in sum alone."""


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
        askers: Sequence[Requests[Any, Any]] = (),
        lines: LineServer | None = None,
        partition_count: int | None = None,
    ) -> None:
        self._partition_count = partition_count
        self._lines = lines or LineServer()
        self._writer = writer
        self._askers = {it.client_id: it for it in askers}
        self._waiting: dict[tuple[bytes, int], list[bytes]] = {}
        self._bytes: dict[bytes, int] = {}  # of large answers that wait, by client
        self._large_bytes = 0  # all of them
        self._small_bytes = 0  # of other answers that were not given to the writer yet
        self._seldom = Seldom()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of large answers that are not delivered yet, and of small ones of this turn."""
        return self._large_bytes + self._small_bytes

    def room(self, client_id: bytes) -> bool:
        """Whether another answer to this client may wait; if not, the log says so.

        An owner asks before it makes an answer that may be large.
        """
        of_client = self._bytes.get(client_id, 0)
        if self.waiting_bytes < WAITING_BYTES_MAX and of_client < CLIENT_WAITING_BYTES_MAX:
            return True
        if self._seldom.due():
            log.warning(
                "answers_wait",
                client=client_key(client_id).hex(),
                client_bytes=of_client,
                waiting_bytes=self.waiting_bytes,
                why="answers were asked for faster than they are delivered; further ones are"
                " dropped, and clients repeat their requests",
            )
        return False

    def add(self, client_id: bytes, reply_partition: int, answer: bytes) -> None:
        """Takes one serialised answer; it is sent after this turn of the loop, or by `send`.

        Without `room` the answer is dropped.
        """
        size_bytes = len(answer)
        if size_bytes >= LARGE_BYTES:
            if not self.room(client_id):
                return
            self._bytes[client_id] = self._bytes.get(client_id, 0) + size_bytes
            self._large_bytes += size_bytes
        elif self._small_bytes >= WAITING_BYTES_MAX and not self.room(client_id):
            return
        else:
            self._small_bytes += size_bytes
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.send)
        self._waiting.setdefault((client_id, reply_partition), []).append(answer)

    def tell(self, requests: Iterable[Request[Any]], notice: OwnerEnded) -> None:
        """Tells the clients of these requests that the owner has ended (B8); each is told once."""
        value = encode_notice(notice)
        for client_id, partition in sorted({(it.client_id, it.reply_partition) for it in requests}):
            if asker := self._askers.get(client_id):
                asker.notice_received(notice)
            elif self._partition_count is None or partition < self._partition_count:
                self._append(partition, value, notice_key(client_id), _delivered)

    def send(self) -> None:
        """Sends the gathered answers."""
        waiting, self._waiting = self._waiting, {}
        self._small_bytes = 0
        for (client_id, partition), answers in waiting.items():
            if asker := self._askers.get(client_id):
                asyncio.get_running_loop().call_soon(asker.answers_received, answers)
                self._ended(client_id, answers)(None, -1)
                continue
            if self._lines.send(client_id, answers):  # a line bounds what waits in it
                self._ended(client_id, answers)(None, -1)
                continue
            if self._partition_count is not None and partition >= self._partition_count:
                log.warning(
                    "answers_dropped",
                    answers=len(answers),
                    why=f"{TXN_RESPONSES} has no partition {partition}",
                )
                self._ended(client_id, answers)(None, -1)
                continue
            for some in _parts(answers):
                value, ended = encode_batch(some), self._ended(client_id, some)
                self._append(partition, value, client_key(client_id), ended, len(some))

    def _append(
        self, partition: int, value: bytes, key: bytes, delivered: Delivered, count: int = 1
    ) -> None:
        try:
            self._writer.append(TopicPartition(TXN_RESPONSES, partition), value, delivered, key=key)
        except ConnectorError as error:
            log.warning("answers_dropped", answers=count, why=error.primary)
            delivered(error, -1)

    def _ended(self, client_id: bytes, answers: Sequence[bytes]) -> Delivered:
        """What to call once these answers wait no more, delivered or not."""
        if client_id not in self._bytes:
            return _delivered
        size_bytes = sum(len(it) for it in answers if len(it) >= LARGE_BYTES)

        def ended(_error: ConnectorError | None, _offset: int) -> None:
            self._large_bytes -= size_bytes
            self._bytes[client_id] -= size_bytes
            if not self._bytes[client_id]:
                del self._bytes[client_id]

        return ended if size_bytes else _delivered


def _parts(answers: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The answers in order, in parts that fit into a record."""
    if sum(map(len, answers)) <= ANSWERS_BYTES_MAX:
        yield answers
        return
    part: list[bytes] = []
    size_bytes = 0
    for answer in answers:
        if part and size_bytes + len(answer) > ANSWERS_BYTES_MAX:
            yield part
            part, size_bytes = [], 0
        part.append(answer)
        size_bytes += len(answer)
    yield part


def _delivered(_error: ConnectorError | None, _offset: int) -> None:
    """A client without an answer repeats its request (C1b); the writer counts failures (C17)."""
