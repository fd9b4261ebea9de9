"""Replaces the producer of a writer once the producer has lost its brokers for good.

*Source*: librdkafka's issues 5301 and 5511 (docs/internals/kafka-clients.md): a client may stop to
look for its brokers, and then fails every record for ever.

*Invariants*: a producer is replaced only while another one finds a broker that it does not find: a
broker that is away ends no producer, whose younger records may still be written in order. What the
replaced producer holds is reported as failed, so that no record is written behind later ones.
"""

import asyncio
import logging
from collections.abc import Callable

from stilltide.connectors.kafka.logs import LOGGER
from stilltide.connectors.kafka.producer.client import ProducerClient


class KeptClient:
    """The client of one writer. To be used on one event loop.

    Args:
        make: makes a client that is not started.
        start: starts the client that takes the place of the one before.
        request_timeout_s: time-out of each question whether a client finds a broker.
        name: the writer's name in the log.

    Attributes:
        client: the client now.
    """

    def __init__(
        self,
        make: Callable[[], ProducerClient],
        start: Callable[[ProducerClient], None],
        request_timeout_s: float,
        name: str,
    ) -> None:
        self.client = make()
        self._make = make
        self._start = start
        self._timeout_s = request_timeout_s
        self._name = name
        self._looking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Called when a record has timed out: replaces the client if it is lost."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._replace_if_lost(self.client))

    async def looked(self) -> None:
        """Returns once no look is under way."""
        if self._looking is not None:
            await asyncio.wait([self._looking])

    async def close(self) -> None:
        """Ends the client; everything that it was given is reported then."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.client.end()

    async def _replace_if_lost(self, client: ProducerClient) -> None:
        if await client.finds_broker(self._timeout_s):
            return
        spare = self._make()
        try:
            # The broker may have come back between two questions: the first client is asked again.
            if await spare.finds_broker(self._timeout_s) and not await client.finds_broker(
                self._timeout_s
            ):
                client, spare, self.client = spare, client, spare
                self._start(client)
                LOGGER.log(
                    logging.WARNING,
                    "writer %s goes on with a new client: the one before finds no broker any more",
                    self._name,
                )
        finally:
            await asyncio.shield(asyncio.ensure_future(spare.end()))
