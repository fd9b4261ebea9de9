"""Questions to brokers over kafka-python's connections, asked from an asyncio loop.

*Source*: kafka.md 4. Used for what confluent-kafka does not offer: raw batches, and the brokers'
own view of transactions.

*Invariants*: kafka-python's coroutines are driven by its own loop, on a thread of its own, and
await its own futures, never asyncio's. Asking about a topic never makes it.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition as ClientPartition

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import TOPIC_ABSENT_MS, KafkaConfig
from stilltide.connectors.kafka.raw.options import raw_options
from stilltide.schemas.values import TopicPartition

T = TypeVar("T")

_AGAIN_S = 0.1
"""Between two attempts."""


class RawClient:
    """What an object of the Kafka connector asks with; connects at its first call.

    Belongs to the loop of that call.

    Args:
        config: of the cluster.
        client_id: told to the brokers.
        name: of the object, for the error of a call after `close`.

    Attributes:
        address: bootstrap servers.
        timeout_s: of a request.
    """

    def __init__(self, config: KafkaConfig, client_id: str, name: str) -> None:
        """Touches nothing yet.

        Raises:
            FatalError: the settings hold a TLS or SASL option that cannot be passed on.
        """
        self.address = config.bootstrap_servers
        self.timeout_s = config.request_timeout_s
        self._name = name
        self._options = raw_options(config, client_id)
        self._line: Line | None = None
        self._closing = asyncio.Event()

    async def call(self, work: "Callable[[Line], Awaitable[T]]") -> T:
        """Runs on kafka-python's thread; what is still under way at `close` is left to itself."""
        if self._closing.is_set():
            raise self._closed_error()
        if self._line is None:
            self._line = Line(self._options, self.timeout_s)
        running = asyncio.ensure_future(self._line.run(work))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((running, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            running.cancel()
        if self._closing.is_set():
            # What the closed line makes of the call is nobody's business.
            await asyncio.gather(running, return_exceptions=True)
            raise self._closed_error()
        return running.result()

    async def close(self) -> None:
        """Ends the connections; safe to call twice."""
        self._closing.set()
        line, self._line = self._line, None
        if line is not None:
            await asyncio.to_thread(line.close)

    def _closed_error(self) -> FatalError:
        return FatalError(f"{self._name} is closed")


class Line:
    """kafka-python's loop, and what is asked on it. All but `run` and `close` is called there."""

    def __init__(self, options: dict[str, Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # Any: the stubs that pyright brings along are of kafka-python 2.
        self._net: Any = NetworkSelector(client_id=options["client_id"])
        self._manager: Any = KafkaConnectionManager(self._net, **options)
        self._manager.cluster.config["allow_auto_create_topics"] = False
        self._net.start()

    async def run(self, work: "Callable[[Line], Awaitable[T]]") -> T:
        """What `work` returns or raises; called on an asyncio loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def answered(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)  # pyright: ignore[reportArgumentType] - there is a result
            else:
                done.set_exception(error)

        def post(result: T | None, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(answered, result, error)
            except RuntimeError:
                # The loop ended without closing its reader; nobody is left to tell.
                self._net.stop(timeout_ms=0)

        future = self._manager.call_soon(work, self)
        future.add_callback(lambda result: post(result, None))
        future.add_errback(lambda error: post(None, error))
        return await done

    def close(self) -> None:
        """Ends connections and thread; called on a thread that may wait."""
        self._net.run(self._manager.close)
        self._net.close()

    async def persist(self, attempt: Callable[[], Awaitable[T]], deadline_s: float) -> T:
        """The result of `attempt`, made again after what may pass, with new metadata.

        Raises:
            kafka_errors.KafkaError: the last one, when it will not pass or time is up.
        """
        absent_s = time.monotonic() + TOPIC_ABSENT_MS / 1000
        while True:
            try:
                await self._connect()
                return await attempt()
            except kafka_errors.KafkaError as error:
                missing = isinstance(error, kafka_errors.UnknownTopicOrPartitionError)
                until_s = min(absent_s, deadline_s) if missing else deadline_s
                if not error.retriable or time.monotonic() > until_s:
                    raise
                if error.invalid_metadata:
                    self._manager.cluster.request_update()
            await self._net.sleep(_AGAIN_S)

    async def send(self, request: Any, node: int | None = None) -> Any:
        """The answer of a broker, any one without `node`; its error codes are the caller's."""
        if node is None:
            node = self._manager.least_loaded_node()
        return await self._manager.send(request, node)

    async def leader(self, data: TopicPartition) -> tuple[int, int]:
        """Node and epoch of the leader."""
        cluster, partition = self._manager.cluster, ClientPartition(*data)
        leader = cluster.leader_for_partition(partition)
        if leader is None:
            _follow(cluster, data.topic)
            await cluster.refresh_metadata()
            leader = cluster.leader_for_partition(partition)
        if leader is None:
            if data.topic in cluster.unauthorized_topics:
                raise kafka_errors.TopicAuthorizationFailedError
            raise kafka_errors.UnknownTopicOrPartitionError
        if leader < 0:
            raise kafka_errors.LeaderNotAvailableError
        epoch = cluster.leader_epoch_for_partition(partition)
        return leader, -1 if epoch is None else epoch

    async def _connect(self) -> None:
        if not self._manager.bootstrapped:
            await self._manager.bootstrap_async(timeout_ms=math.ceil(self._timeout_s * 1000))


def _follow(cluster: Any, topic: str) -> None:
    """Has the topic be part of the metadata from now on."""
    try:
        cluster.add_topic(topic)
    except ValueError as error:
        raise kafka_errors.InvalidTopicError(str(error)) from error
