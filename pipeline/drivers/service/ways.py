"""The ways by which requests reach an owner: without Kafka in this process, by line, or by topic.

*Source*: docs/protocols C1b, J1.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.writers import Delivered, LogWriter
from stilltide.pipeline.drivers.service.hindrances import Seldom
from stilltide.pipeline.drivers.service.lines.client import ClientLine
from stilltide.schemas.service.client_ids import client_key
from stilltide.schemas.values import TopicPartition


class Neighbour(Protocol):
    """An owner in this process, which is asked, and answers, without Kafka."""

    @property
    def serving(self) -> bool:
        """Whether it owns its log now."""
        ...

    def requests_received(self, value: bytes | None, *, operator: bool = False) -> None:
        """Takes one value of a requests topic; raises `DecodeError`.

        `operator`: the value is from a topic that only operators and workers may write (C15).
        """
        ...


class Ways:
    """The ways to the owners of one service.

    Args:
        topic: topic of the requests.
        operators: whether only operators and workers may write to the topic (C15).
        writer: appends requests; shared with the client's data.
        client_id: the client's secret.

    Attributes:
        neighbours: owners in this process, by partition. A serving one is asked directly: its log
            makes the request durable and decides which owner's entries count (B), and a lost
            request is repeated (C1b).
        lines: direct lines, by partition; empty: the client has none.
        seldom: lets one line in a minute pass for each cause of requests that are not delivered.
        reached: called with the partition of the topic whose owner took requests by another way.
    """

    def __init__(self, topic: str, writer: LogWriter, client_id: bytes, *, operators: bool) -> None:
        self.neighbours: Mapping[int, Neighbour] = {}
        self.lines: list[ClientLine] = []
        self.seldom = Seldom()
        self.reached: Callable[[TopicPartition], None] | None = None
        self._topic = topic
        self._writer = writer
        self._key = client_key(client_id)
        self._operators = operators

    def send(self, partition: int, value: bytes, delivered: Delivered) -> None:
        """Sends the value of a requests record; a lost one is repeated."""
        soon = asyncio.get_running_loop().call_soon
        neighbour = self.neighbours.get(partition)
        if neighbour is not None and neighbour.serving:
            soon(partial(neighbour.requests_received, value, operator=self._operators))
            soon(delivered, None, -1)
            if self.reached is not None:
                self.reached(TopicPartition(self._topic, partition))
            return
        if self.lines and self.lines[partition].send(value):
            soon(delivered, None, -1)
            return
        data = TopicPartition(self._topic, partition)
        try:
            self._writer.append(data, value, delivered, key=self._key)
        except ConnectorError as error:
            soon(delivered, error, -1)

    async def close(self) -> None:
        """Closes the lines."""
        await asyncio.gather(*(line.close() for line in self.lines))
