"""Requests to brokers over kafka-python's connections, made from an asyncio loop.

*Source*: docs/internals/kafka-clients.md. Used for what confluent-kafka does not offer: raw
batches, offsets of groups from outside, and the brokers' own view of transactions.

*Invariants*: kafka-python's coroutines run on kafka-python's own loop, on a thread of its own, and
await its own futures, never asyncio's. A request about a topic never creates the topic. Every call
ends: a connection that leaves a request without an outcome is replaced.

The one place where errors of kafka-python become connector errors.

*Source*: `connectors.kafka.errors`: brokers' error codes are the same in both libraries.

Translates settings of the Kafka connector to kafka-python's options.

*Source*: connectors.kafka.config. Users write librdkafka's option names once, for all clients.

Refuses a TLS or SASL option that has no equivalent in kafka-python: a client that leaves out a
security option may connect to an impostor.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import kafka.errors as kafka_errors
from confluent_kafka import KafkaError
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.metadata.find_coordinator import CoordinatorType, FindCoordinatorRequest
from kafka.structs import TopicPartition as ClientPartition

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.kafka.config import TOPIC_ABSENT_MS, KafkaConfig, milliseconds
from stilltide.connectors.kafka.errors import Access, Caller, on_topic, translate
from stilltide.connectors.kafka.oauth import TokenSource
from stilltide.connectors.kafka.security import (
    OF_TOKENS,
    SECURITY_PREFIXES,
    checks_host,
    oidc_client,
)
from stilltide.schemas.retry import RAW_CALL
from stilltide.schemas.rights import Operation
from stilltide.schemas.topics import Broker
from stilltide.schemas.values import TopicPartition

_TXN_OFFSET_COMMIT_OF_4_4 = 6
"""Version of the request that Kafka 4.4 takes first, with ids of topics."""

_ASKED = "stilltide_asked"
"""Attribute of an error of kafka-python: the rights that the failed part of a request needs."""


def check(code: int, *asked: Access) -> None:
    """Raises kafka-python's error for a broker's code; 0 is none.

    Args:
        code: the code.
        asked: the rights that this part of the request needs.
    """
    if code:
        error: Exception = kafka_errors.for_code(code)()
        setattr(error, _ASKED, asked)
        raise error


def translate_raw(
    error: kafka_errors.KafkaError,
    caller: Caller | str,
    action: str,
    *asked: Access,
    detail: str = "",
) -> ConnectorError:
    """The connector error for an error of kafka-python.

    Args:
        error: kafka-python's error.
        caller: the client, or only the bootstrap servers of the cluster.
        action: the failed action, such as `cannot fetch t/0@7`.
        asked: the rights that the action needs, unless the error names those (`check`).
        detail: further evidence.
    """
    if isinstance(error, kafka_errors.BrokerResponseError) and error.errno is not None:
        detail = detail or (str(error) if error.args else "")
        asked = getattr(error, _ASKED, asked)
        return translate(KafkaError(error.errno), caller, action, *asked, detail=detail)
    away = KafkaError._TRANSPORT if error.retriable else KafkaError._FAIL  # noqa: SLF001 - the client's public name begins so
    return translate(KafkaError(away, repr(error)), caller, action, detail=detail)


RESPONSE_BYTES_MAX = 128 * 1024 * 1024
"""Longest answer accepted; the largest batch that a topic can be configured to accept fits."""


_TRANSLATED: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "security.protocol": ("security_protocol", str.upper),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.mechanisms": ("sasl_mechanism", str),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "ssl.ca.location": ("ssl_cafile", str),
    "ssl.certificate.location": ("ssl_certfile", str),
    "ssl.key.location": ("ssl_keyfile", str),
    "ssl.key.password": ("ssl_password", str),
    "ssl.crl.location": ("ssl_crlfile", str),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", checks_host),
}


class RawTokens(AbstractTokenProvider):
    """Tokens in the form in which kafka-python asks for them: on the thread of its own loop.

    Args:
        source: the tokens.
    """

    def __init__(self, source: TokenSource) -> None:
        super().__init__()
        self.source = source

    def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - no type there
        """The token; waits only if `source.fresh` was not awaited before, or is too long ago."""
        try:
            return self.source.token()
        except ConnectorError as error:
            # An error that kafka-python knows: the connection fails, and is tried again.
            raise kafka_errors.KafkaConnectionError(str(error)) from error

    def extensions(self) -> dict[str, str]:
        """The extensions of the settings."""
        return dict(self.source.client.extensions)


def raw_options(config: KafkaConfig, client_id: str) -> dict[str, Any]:
    """Options of kafka-python's connection manager.

    Extra options that do not concern security are left out: kafka-python has not got them.

    Raises:
        FatalError: an extra option concerns security and has no equivalent in kafka-python.
    """
    options: dict[str, Any] = {
        "bootstrap_servers": config.bootstrap_servers,
        "client_id": client_id,
        "request_timeout_ms": milliseconds(config.request_timeout_s),
        "socket_connection_setup_timeout_ms": milliseconds(config.request_timeout_s),
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 1000,
        "receive_message_max_bytes": RESPONSE_BYTES_MAX,
        # The broker answers requests in turn. kafka-python refuses requests above this number,
        # it does not queue them.
        "max_in_flight_requests_per_connection": 1000,
    }
    for name, value in config.extra.items():
        if name in _TRANSLATED:
            ours, convert = _TRANSLATED[name]
            options[ours] = convert(value)
        elif name.startswith(SECURITY_PREFIXES) and name not in OF_TOKENS:
            raise FatalError(
                f"the Kafka option {name} cannot be passed to the reader of raw batches",
                detail=f"known are {', '.join(sorted(_TRANSLATED))}",
                hint="remove it from the extra options, or use the known ones",
            )
    if client := oidc_client(config.extra):
        options["sasl_oauth_token_provider"] = RawTokens(TokenSource(client))
    return options


T = TypeVar("T")

_UNANSWERED = 4
"""A call is given up after so many request time-outs. The last attempt of a call begins before the
first of them ends, and asks at most three times, each time with a time-out of its own."""


class SharedLine:
    """The line of one client, or of several that ask what brokers answer at once.

    A line has a thread, and a connection to each broker that it asks. A broker carries out the
    requests of a connection one after the other: a fetch that waits for records needs its own line.

    Args:
        config: the cluster's config.
        client_id: the client id in requests to brokers.

    Attributes:
        config: as above.
        tokens: the tokens of OAuth; None: the connections need none.
    """

    def __init__(self, config: KafkaConfig, client_id: str) -> None:
        """Makes no connection.

        Raises:
            FatalError: the settings hold a TLS or SASL option that kafka-python lacks.
        """
        self.config = config
        self._options = raw_options(config, client_id)
        tokens = self._options.get("sasl_oauth_token_provider")
        self.tokens = tokens.source if isinstance(tokens, RawTokens) else None
        self._line: Line | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def join(self, user: object) -> "Line":
        """The line that the user asks from now on, on the running loop."""
        loop, line = asyncio.get_running_loop(), self._line
        if line is None or line.loop is not loop:
            line = self._line = Line(self._options, self.config.request_timeout_s, loop)
        line.users.add(user)
        return line

    async def leave(self, user: object, line: "Line") -> None:
        """The user does not ask the line any more; the last one ends the line."""
        line.users.discard(user)
        if not line.users and not line.given_up:
            if self._line is line:
                self._line = None
            await asyncio.to_thread(line.close)

    def give_up(self, line: "Line") -> None:
        """Has later calls use another line; other calls on this one are given up, too."""
        if not line.given_up:
            line.given_up = True
            if self._line is line:
                self._line = None
            ending = asyncio.create_task(asyncio.to_thread(line.close))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


class RawClient:
    """Makes requests for one object of the Kafka connector; connects at the first call.

    May be used on the loop of the first call only.

    Args:
        shared: the line for the requests, until `close`.
        name: name of the object, for the error of a call after `close`.

    Attributes:
        address: bootstrap servers and user, for errors.
        timeout_s: time-out of a request.
    """

    def __init__(self, shared: SharedLine, name: str) -> None:
        self.address = shared.config.caller
        self.timeout_s = shared.config.request_timeout_s
        self._shared = shared
        self._name = name
        self._line: Line | None = None
        self._closing: asyncio.Future[None] | None = None
        self._closed = False

    async def call(self, work: "Callable[[Line], Awaitable[T]]") -> T:
        """Runs `work` on kafka-python's thread; a call under way at `close` raises `FatalError`.

        Raises:
            NoBrokerError: no broker listens, and none did before.
            RetriableError: `work` has no outcome long after its requests have timed out; the next
                call makes another connection.
        """
        await self._shared.config.reach()
        if self._closed:
            raise self._closed_error()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_future()
        if self._line is None or self._line.given_up:
            self._line = self._shared.join(self)
        line = self._line
        running = asyncio.ensure_future(self._run(line, work))
        limit_s = _UNANSWERED * self.timeout_s
        try:
            done, _ = await asyncio.wait(
                (running, self._closing), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            running.cancel()
        if self._closed:
            # The outcome of the call on the closed line does not matter any more.
            await asyncio.gather(running, return_exceptions=True)
            raise self._closed_error()
        if not done:
            self._shared.give_up(line)
            raise RetriableError(
                f"no answer to {self._name} from {self.address} for {limit_s:g} s",
                hint="check that the brokers run; the next call makes a new connection",
            )
        return running.result()

    async def ask(
        self, attempt: "Callable[[Line], Awaitable[T]]", action: str, *asked: Access
    ) -> T:
        """The result of `attempt`, repeated within the request time-out after errors that pass.

        Args:
            attempt: asks brokers; runs on kafka-python's thread.
            action: the failed action, such as `cannot list groups`, for the error.
            asked: the rights that the action needs.

        Raises:
            ConnectorError: the last error, as `translate_raw` makes it.
        """
        deadline_s = time.monotonic() + self.timeout_s
        try:
            return await self.call(lambda line: line.persist(lambda: attempt(line), deadline_s))
        except kafka_errors.KafkaError as error:
            raise translate_raw(error, self.address, action, *asked) from error

    async def _run(self, line: "Line", work: "Callable[[Line], Awaitable[T]]") -> T:
        if self._shared.tokens is not None:
            # kafka-python's loop, which all connections share, then need not wait for a token.
            await self._shared.tokens.fresh()
        return await line.run(work)

    async def close(self) -> None:
        """Ends the connections that no other client uses; safe to call twice."""
        self._closed = True
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)
        line, self._line = self._line, None
        if line is not None:
            await self._shared.leave(self, line)

    def _closed_error(self) -> FatalError:
        return FatalError(f"{self._name} is closed")


class Line:
    """kafka-python's loop and its requests; only `run` and `close` are called outside that loop.

    Args:
        options: options of kafka-python.
        timeout_s: time-out of a request.
        loop: the asyncio loop of the users.

    Attributes:
        loop: as above.
        users: the clients that have not left yet.
        given_up: whether a request was left without an outcome: the line is not asked any more.
    """

    def __init__(
        self, options: dict[str, Any], timeout_s: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.loop = loop
        self.users: set[object] = set()
        self.given_up = False
        self._timeout_s = timeout_s
        # Any: the stubs that pyright brings along are of kafka-python 2.
        # This loop has a thread of its own: a step that waits for the processor holds up nobody
        # else, and kafka-python would warn of each on a busy machine.
        self._net: Any = NetworkSelector(client_id=options["client_id"], slow_task_threshold_secs=0)
        self._manager: Any = KafkaConnectionManager(self._net, **options)
        self._manager.cluster.config["allow_auto_create_topics"] = False
        self._net.start()

    async def run(self, work: "Callable[[Line], Awaitable[T]]") -> T:
        """Returns or raises the outcome of `work`; called on an asyncio loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def answered(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)  # pyright: ignore[reportArgumentType] - there is a result
            elif isinstance(error, GeneratorExit):  # the loop has ended before
                done.set_exception(_given_up())
            else:
                done.set_exception(error)

        def post(result: T | None, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(answered, result, error)
            except RuntimeError:
                # The asyncio loop ended without closing its client; nobody waits for the outcome.
                self._net.stop(timeout_ms=0)

        try:
            future = self._manager.call_soon(work, self)
        except RuntimeError as error:  # the loop has ended
            raise _given_up() from error
        future.add_callback(lambda result: post(result, None))
        future.add_errback(lambda error: post(None, error))
        return await done

    def close(self) -> None:
        """Ends connections and thread; called on a thread that may wait."""
        self._net.run(self._manager.close)
        self._net.close()

    async def persist(self, attempt: Callable[[], Awaitable[T]], deadline_s: float) -> T:
        """The result of `attempt`, repeated with new metadata after each retriable error.

        Raises:
            kafka_errors.KafkaError: the last error, if not retriable or when time is up.
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
            await self._net.sleep(RAW_CALL.wait_s())

    async def send(self, request: Any, node: int | None = None) -> Any:
        """The answer of `node`, or of any broker; the caller checks the error codes in it."""
        asked = self.any_node() if node is None else node
        try:
            return await self._manager.send(request, asked)
        except kafka_errors.UnknownBrokerIdError as error:  # pyright: ignore[reportAttributeAccessIssue] - it is there
            # A leader that has left the metadata since they named it: it was killed, or frozen.
            # kafka-python does not take that for an error that passes.
            raise kafka_errors.StaleMetadata(f"no address of broker {asked}") from error

    async def rest(self, seconds: float) -> None:
        """Waits."""
        await self._net.sleep(seconds)

    def any_node(self) -> int:
        """The broker that is best asked now, if any may be."""
        return self._manager.least_loaded_node()

    async def nodes(self) -> list[int]:
        """The brokers, as of now."""
        return [broker.id for broker in await self.brokers()]

    async def brokers(self) -> list[Broker]:
        """The brokers with their racks, as of now."""
        cluster = self._manager.cluster
        await cluster.refresh_metadata()
        listed = [Broker(broker.node_id, broker.rack) for broker in cluster.brokers()]
        if not listed:  # of a broker that is starting
            raise kafka_errors.NodeNotReadyError("no brokers are listed")
        return listed

    @property
    def version(self) -> str:
        """The version of Kafka as the broker's protocol shows it, such as `4.3`; at most 4.4."""
        requests = self._manager.broker_version_data
        if requests is None:
            return ""
        _, newest = requests.api_versions.get(ApiKey.TxnOffsetCommit, (0, 0))
        if newest >= _TXN_OFFSET_COMMIT_OF_4_4:
            return "4.4"  # kafka-python knows none above 4.3
        return ".".join(map(str, requests.broker_version))

    async def leader(self, data: TopicPartition) -> tuple[int, int]:
        """Node and epoch of the partition's leader."""
        cluster, partition = self._manager.cluster, ClientPartition(*data)
        leader = cluster.leader_for_partition(partition)
        if leader is None:
            _follow(cluster, data.topic)
            await cluster.refresh_metadata()
            leader = cluster.leader_for_partition(partition)
        if leader is None:
            if data.topic in cluster.unauthorized_topics:
                refused = kafka_errors.TopicAuthorizationFailedError.errno
                check(refused, on_topic(Operation.DESCRIBE, data.topic))
            raise kafka_errors.UnknownTopicOrPartitionError
        if leader < 0:
            raise kafka_errors.LeaderNotAvailableError
        epoch = cluster.leader_epoch_for_partition(partition)
        return leader, -1 if epoch is None else epoch

    async def transaction_coordinator(self, transactional_id: str, asked: Access) -> int:
        """Node of the coordinator of a transactional id; `asked` is the right that this needs."""
        request = FindCoordinatorRequest(
            key=transactional_id,
            key_type=int(CoordinatorType.TRANSACTION),
            min_version=1,
            max_version=3,
        )
        response = await self.send(request)
        check(response.error_code, asked)
        return response.node_id

    async def _connect(self) -> None:
        if not self._manager.bootstrapped:
            await self._manager.bootstrap_async(timeout_ms=math.ceil(self._timeout_s * 1000))


def _given_up() -> Exception:
    """The error of a call on a line that another client has given up."""
    return kafka_errors.KafkaConnectionError("a request on the same line has got no answer")


def metadata_request(names: Iterable[str], **form: Any) -> MetadataRequest:
    """A question for topics that creates none; `form` bounds its version."""
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False, **form)


def _follow(cluster: Any, topic: str) -> None:
    """Adds the topic to those that metadata requests cover."""
    try:
        cluster.add_topic(topic)
    except ValueError as error:
        raise kafka_errors.InvalidTopicError(str(error)) from error
