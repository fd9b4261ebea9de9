"""The client of an admin, and its replacement after a call without an answer.

*Source*: connectors.ports, `LogAdmin`; librdkafka's issues 5301 and 5511 (see `fetch_watch`).

*Invariants*: a client is destroyed on a thread of its own, and only after the last call that uses
it has ended: destroyed earlier, it would never answer.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from stilltide.connectors.kafka.config import KafkaConfig, admin_options
from stilltide.connectors.kafka.errors import REFUSED, translate
from stilltide.connectors.kafka.logs import ClientLog

K = TypeVar("K")

_UNANSWERED = 0.9
"""Share of the request time-out; a longer call counts as one without an answer."""

Answers = Mapping[K, "Future[Any]"]
"""The futures that the client returns for a request, one for each key of the request."""


class AdminClients:
    """The client that the calls of one admin share; connects at the first call.

    Attributes:
        last_error: the last error of a connection, since a time-out does not name its cause. A
            refusal stays until a request is answered: later attempts may fail in another way.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self.last_error: KafkaError | None = None
        self._config = config
        self._client: AdminClient | None = None
        self._given_up = False
        self._calls: Counter[AdminClient] = Counter()

    async def ask(self, question: Callable[[AdminClient], Answers[K]]) -> Answers[K]:
        """The answers to a request, all of them complete."""
        async with self.calling() as client:
            answers = question(client)
            arriving = map(asyncio.wrap_future, answers.values())
            arrived = await asyncio.gather(*arriving, return_exceptions=True)
        if not all(isinstance(it, BaseException) for it in arrived):
            self.last_error = None
        return answers

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[AdminClient]:
        """Holds the client for the time of one call."""
        if self._given_up:
            await self.close()
        if self._client is None:
            self._client = make_client(self._config, self.note_error)
        client, began_s = self._client, time.monotonic()
        self._calls[client] += 1
        try:
            yield client
        finally:
            self._calls[client] -= 1
            # Only a poll delivers the client's queued log lines and errors.
            client.poll(0)
            if client is not self._client:
                await self._end(client)
            elif time.monotonic() - began_s > _UNANSWERED * self._config.request_timeout_s:
                # By the duration, because the client's error then differs from call to call.
                self.give_up()

    def give_up(self) -> None:
        """Makes later calls use another client, because the present one gave no answer in time."""
        self._given_up = True

    async def close(self) -> None:
        """Releases connections, at the end of the calls under way; safe to call twice."""
        client, self._client, self._given_up = self._client, None, False
        if client is not None:
            await self._end(client)

    async def _end(self, client: AdminClient) -> None:
        if not self._calls[client]:
            del self._calls[client]
            # The client's destructor joins its threads.
            await asyncio.to_thread(client.__exit__, None, None, None)

    def note_error(self, error: KafkaError) -> None:
        """Keeps the error of a connection; called within a poll."""
        # "all brokers are down" follows every error; the error before it is the cause.
        down = error.code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - a public name
        last = self.last_error
        if last is None or not (down or last.code() in REFUSED):
            self.last_error = error


def make_client(config: KafkaConfig, note_error: Any) -> AdminClient:
    """A client for admins; `note_error` is called with each error of a connection."""
    options = {**admin_options(config), "error_cb": note_error}
    try:
        return AdminClient(options, logger=ClientLog(str(options["client.id"])))
    except KafkaException as error:
        raise translate(error, config.bootstrap_servers, "cannot make an admin") from error
