"""The clients of an admin: one at a time, and another after one that gave no answer.

*Source*: connectors.ports, `LogAdmin`; librdkafka's issues 5301 and 5511 (see `fetch_watch`).

*Invariants*: a client is destroyed on a thread of its own, and not before the last call that uses
it is over: the answers to its calls would never come.
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
"""A call that took so much of the request time-out was not answered."""

Answers = Mapping[K, "Future[Any]"]
"""What the client gives at once to a question about several things."""


class AdminClients:
    """What the calls of one admin share. Connects at the first call.

    Attributes:
        last_error: of a connection; a call that timed out does not say why. A refusal stays until
            a question is answered, for the client tries again and may then be cut off.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self.last_error: KafkaError | None = None
        self._config = config
        self._client: AdminClient | None = None
        self._given_up = False
        self._calls: Counter[AdminClient] = Counter()

    async def ask(self, question: Callable[[AdminClient], Answers[K]]) -> Answers[K]:
        """The answers to a question, each of them there."""
        async with self.calling() as client:
            answers = question(client)
            arriving = map(asyncio.wrap_future, answers.values())
            arrived = await asyncio.gather(*arriving, return_exceptions=True)
        if not all(isinstance(it, BaseException) for it in arrived):
            self.last_error = None
        return answers

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[AdminClient]:
        """The client to make a call with."""
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
            # Serves the log lines and errors that have queued up; nothing else does.
            client.poll(0)
            if client is not self._client:
                await self._end(client)
            elif time.monotonic() - began_s > _UNANSWERED * self._config.request_timeout_s:
                # What the client reports then differs from call to call.
                self.give_up()

    def give_up(self) -> None:
        """Has later calls use another client: this one gave no answer in time."""
        self._given_up = True

    async def close(self) -> None:
        """Releases connections, those of calls under way when they are over; safe to call twice."""
        client, self._client, self._given_up = self._client, None, False
        if client is not None:
            await self._end(client)

    async def _end(self, client: AdminClient) -> None:
        if not self._calls[client]:
            del self._calls[client]
            # The client's destructor joins its threads.
            await asyncio.to_thread(client.__exit__, None, None, None)

    def note_error(self, error: KafkaError) -> None:
        """Takes an error of a connection, within a poll."""
        # "all brokers are down" follows upon every cause; the cause is the news.
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
