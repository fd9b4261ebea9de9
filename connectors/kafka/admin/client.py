"""The client of an admin, and its replacement after a call without an answer.

*Source*: connectors.ports, `LogAdmin`; librdkafka's issues 5301 and 5511 (see `fetch_watch`).

*Invariants*:
- A client is destroyed on a thread of its own, and only after the last call that uses it has ended:
  destroyed earlier, it would never answer.
- A client is destroyed after the last answer to its requests, also of calls that were cancelled:
  librdkafka reads an answer that comes while its client is destroyed from memory that it never had.

*Refuses*: librdkafka's description of a cluster. A broker that is starting, or that the controller
takes for dead, answers without brokers, and an assertion of librdkafka then ends the process
(`rd_kafka_admin_response_parse`). `AdminClients.listed` asks for the same in another way.
"""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigSource
from confluent_kafka.admin._metadata import ClusterMetadata

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.kafka.config import KafkaConfig, admin_options
from stilltide.connectors.kafka.errors import (
    AWAY,
    MISSING,
    REFUSED,
    Access,
    error_of,
    on_topic,
    translate,
)
from stilltide.connectors.kafka.logs import ClientLog
from stilltide.schemas.retry import SHOWN
from stilltide.schemas.rights import Operation

K = TypeVar("K")

SET_ON_TOPIC = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
"""The source of a config that is set on the topic itself, in a description of configs."""

_UNANSWERED = 0.9
"""Share of the request time-out; a longer call counts as one without an answer."""

_FIRST_ATTEMPT_S = 1.0
_NEXT_ATTEMPT_S = 2.0
"""Time-outs of the first attempts of a call."""

_LAST_ATTEMPT = 1 / 3
"""Share of the request time-out from which on the last attempt has all the time that is left."""

NO_TOPIC = "stilltide asks for the cluster"
"""A name that no topic can have, because of its spaces: a question about it creates no topic."""

_LISTED = "listed"
_PARTIAL = KafkaError._PARTIAL  # noqa: SLF001 - the client's public name begins so

_UNUSED_S = 30.0
"""Time without a change after which the client for changes is ended; a cluster at rest changes
nothing, and a client has four threads and two connections."""

Answers = Mapping[K, "Future[Any]"]
"""The futures that the client returns for a request, one for each key of the request."""


NO_LEADERS = KafkaError._NOENT  # noqa: SLF001 - the client's public name begins so
"""The client's error when no partition of a request has a leader, or none exists.

The error is the same in both cases, so a request for metadata then tells missing partitions from
partitions without a leader.
"""


class NoLeaderError(Exception):
    """No partition of a request has a leader, or none exists; see `NO_LEADERS`."""


class AdminClients:
    """The client that the calls of one admin, or of several, share; connects at the first call.

    Args:
        config: the cluster.
        unused_s: time without a call after which the client is ended; the next call makes another.

    Attributes:
        last_error: the last error of a connection, since a time-out does not name its cause. A
            refusal stays until a request is answered: later attempts may fail in another way.
    """

    def __init__(self, config: KafkaConfig, unused_s: float = math.inf) -> None:
        self.last_error: KafkaError | None = None
        self._config = config
        self._unused_s = unused_s
        self._unused: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._client: AdminClient | None = None
        self._given_up = False
        self._calls: Counter[AdminClient] = Counter()
        self._unanswered: dict[AdminClient, set[Future[Any]]] = {}

    async def ask(self, question: Callable[[AdminClient], Answers[K]]) -> Answers[K]:
        """The answers to a request, all of them complete.

        Raises:
            NoBrokerError: no broker listens, and none did before.
        """
        await self._config.reach()
        async with self.calling() as client:
            answers = question(client)
            unanswered = self._unanswered.setdefault(client, set())
            unanswered.update(answers.values())
            try:
                # One after the other: each that is waited for wakes the loop, which costs several
                # times as much as the answer. Once the last one is there, most others are, too.
                for answer in reversed([*answers.values()]):
                    if not answer.done():
                        await asyncio.gather(asyncio.wrap_future(answer), return_exceptions=True)
            finally:
                unanswered -= {it for it in answers.values() if it.done()}
        if any(it.exception() is None for it in answers.values()):
            self.last_error = None
        return answers

    async def ask_again(self, question: Callable[[AdminClient, float], Answers[K]]) -> Answers[K]:
        """The answers to a question that changes nothing, asked until a broker answers.

        Args:
            question: asks with a time-out in seconds.
        """
        answers: Answers[K] = {}
        async for timeout_s in self.attempts():
            answers = await self.ask(lambda it, timeout_s=timeout_s: question(it, timeout_s))
            if not answers or not all(map(_is_away, answers.values())):
                return answers
        return answers

    async def listed(self, topic: str | None = None) -> ClusterMetadata:
        """What the brokers say of the cluster: its id, its brokers, and topics.

        Args:
            topic: a topic; None: all topics.

        Raises:
            KafkaException: the client's error, also when a broker lists no brokers.
        """
        answers = await self.ask_again(lambda client, timeout_s: _listed(client, topic, timeout_s))
        return answers[_LISTED].result()

    def existing(
        self, answers: Answers[K], action: str, operation: Operation
    ) -> list[tuple[K, Any]]:
        """The keys of a request that exist, each with its answer.

        Args:
            answers: the answers about topics.
            action: the failed action, without the topic.
            operation: what the request needs on each topic.

        Raises:
            NoLeaderError: no partition of the request has a leader, or none exists.
            ConnectorError: a key was answered with another error.
        """
        existing: list[tuple[K, Any]] = []
        for key, answer in answers.items():
            try:
                existing.append((key, answer.result()))
            except KafkaException as error:
                code = error_of(error).code()
                if code == NO_LEADERS:
                    raise NoLeaderError(str(error)) from error
                if code not in MISSING:
                    topic = _topic_of(key)
                    raise self.failure(
                        error, f"{action} {topic}", on_topic(operation, topic)
                    ) from error
        return existing

    def failure(self, error: KafkaException, action: str, *asked: Access) -> ConnectorError:
        """The error of a request, with what is known of the connection."""
        last = self.last_error
        if last is not None and last.code() in REFUSED and error_of(error).code() in AWAY:
            # A refused login shows as a time-out of the call: the client goes on trying to connect.
            return translate(last, self._config.caller, action)
        detail = last.str() if last else ""
        return translate(error, self._config.caller, action, *asked, detail=detail)

    async def attempts(self) -> AsyncIterator[float]:
        """The time-outs of attempts within one request time-out; refreshes between attempts.

        The client sends a question to one broker, often to the one that its metadata names as the
        controller, which is any broker. After a broker has died, the client waits for that broker
        until the time-out, and brokers name a dead one for some seconds. So early attempts are
        short. The last one is long, for a busy broker; after it the client is given up.

        Raises:
            NoBrokerError: as `ask`.
        """
        await self._config.reach()
        total_s = self._config.request_timeout_s
        deadline_s = time.monotonic() + total_s
        timeout_s = min(_FIRST_ATTEMPT_S, total_s)
        while True:
            yield timeout_s
            await asyncio.sleep(SHOWN.wait_s())
            await self._refresh(deadline_s)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            is_last = left_s <= total_s * _LAST_ATTEMPT
            timeout_s = left_s if is_last else min(_NEXT_ATTEMPT_S, left_s)
        self.give_up()

    async def _refresh(self, deadline_s: float) -> None:
        """Requests all metadata: brokers, controller and leaders; ignores that none answers.

        The request is for all topics, because a request about one topic may create it.
        """
        timeout_s = min(_FIRST_ATTEMPT_S, deadline_s - time.monotonic())
        if timeout_s > 0:
            await self.ask(lambda client: _listed(client, None, timeout_s))

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[AdminClient]:
        """Holds the client for the time of one call."""
        if self._given_up:
            await self.close()
        if self._client is None:
            self._client = make_client(self._config, self.note_error)
        client, began_s = self._client, time.monotonic()
        self._calls[client] += 1
        self._used()
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
            elif not self._calls[client] and self._unused_s < math.inf:
                self._used()
                loop = asyncio.get_running_loop()
                self._unused = loop.call_later(self._unused_s, self._end_unused)

    def give_up(self) -> None:
        """Makes later calls use another client, because the present one gave no answer in time."""
        self._given_up = True

    async def close(self) -> None:
        """Releases connections, at the end of the calls under way; safe to call twice."""
        self._used()
        client, self._client, self._given_up = self._client, None, False
        if client is not None:
            await self._end(client)

    def _used(self) -> None:
        if self._unused is not None:
            self._unused.cancel()
            self._unused = None

    def _end_unused(self) -> None:
        self._ending = asyncio.create_task(self.close())

    async def _end(self, client: AdminClient) -> None:
        if not self._calls[client]:
            del self._calls[client]
            unanswered = self._unanswered.pop(client, set())
            if unanswered:
                # Each request has a time-out, for which no caller needs to wait. An interpreter
                # that ends waits: OpenSSL is torn down then, which the client's threads use.
                arguments = (client, unanswered)
                threading.Thread(target=_end_answered, args=arguments).start()
            else:
                # The client's destructor joins its threads.
                await asyncio.to_thread(client.__exit__, None, None, None)

    def note_error(self, error: KafkaError) -> None:
        """Keeps the error of a connection; called within a poll."""
        # "all brokers are down" follows every error; the error before it is the cause.
        down = error.code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - a public name
        last = self.last_error
        if last is None or not (down or last.code() in REFUSED):
            self.last_error = error


class SharedAdminClients:
    """The clients of all admins of one connector, as long as one of the admins is in use.

    A client has four threads and two connections. A broker carries out the requests of a connection
    one after the other, so that a question on the connection of a change waits for the change.

    Attributes:
        questions: for requests that change nothing.
        changes: for all others; ends while nothing is changed.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self.questions = AdminClients(config)
        self.changes = AdminClients(config, _UNUSED_S)
        self._users: set[object] = set()

    def join(self, user: object) -> None:
        """An admin uses the clients from now on."""
        self._users.add(user)

    async def leave(self, user: object) -> None:
        """An admin does not use the clients any more; safe to call twice."""
        self._users.discard(user)
        if not self._users:
            await self.questions.close()
            await self.changes.close()


def _end_answered(client: AdminClient, unanswered: Collection["Future[Any]"]) -> None:
    """Destroys a client after the answers to requests whose callers wait no longer."""
    wait(unanswered)
    client.__exit__(None, None, None)


def _listed(client: AdminClient, topic: str | None, timeout_s: float) -> Answers[str]:
    """Asks for metadata; the client's own call blocks its thread, and cannot be cancelled."""
    answer: Future[ClusterMetadata] = Future()
    answer.set_running_or_notify_cancel()

    def ask() -> None:
        try:
            metadata = client.list_topics(topic, timeout=timeout_s)
        except BaseException as error:  # noqa: BLE001 - raised from the answer
            answer.set_exception(error)
            return
        if metadata.brokers and metadata.cluster_id:
            answer.set_result(metadata)
        else:
            no_brokers = KafkaError(_PARTIAL, "the broker knows of no brokers; it may be starting")
            answer.set_exception(KafkaException(no_brokers))

    asyncio.get_running_loop().run_in_executor(None, ask)
    return {_LISTED: answer}


def _topic_of(key: object) -> str:
    """The topic that a key of a request names: a name, a config resource, or a partition."""
    return key if isinstance(key, str) else str(getattr(key, "topic", getattr(key, "name", key)))


def _is_away(answer: "Future[Any]") -> bool:
    """Whether a complete answer says that no broker has answered."""
    error = answer.exception()
    return isinstance(error, KafkaException) and error_of(error).code() in AWAY


def make_client(config: KafkaConfig, note_error: Any) -> AdminClient:
    """A client for admins; `note_error` is called with each error of a connection."""
    options = {**admin_options(config), "error_cb": note_error}
    try:
        return AdminClient(options, logger=ClientLog(str(options["client.id"]), config.lines))
    except KafkaException as error:
        raise translate(error, config.caller, "cannot make an admin") from error
