"""FastStream's handlers in transactions: the middleware, and what sets a broker up for it.

*Source*: docs/protocols C and G. What a handler publishes, and the acknowledgement of its message,
are one transaction of Stilltide: consumer offsets of Kafka take no part.

*Invariants*: the message is acknowledged in the transaction before the handler runs, so that a
handler may prepare the transaction (L4); an exception aborts both.
"""

from contextlib import AsyncExitStack
from contextvars import ContextVar, Token
from functools import partial
from types import TracebackType
from typing import Any, Unpack

from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SkipMessage
from faststream.message import AckStatus
from faststream.middlewares import BaseMiddleware
from faststream.response.publish_type import PublishType

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.client.subscription_options import SubscriptionKeywords
from stilltide.pipeline.client.transaction import Transaction
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.client.usage import check_connection
from stilltide.pipeline.errors import ArgumentError, UsageError
from stilltide.pipeline.faststream.consumers import (
    AioKafkaConsumer,
    ConfluentConsumer,
    Source,
    TransactionalConsumer,
    sources_of,
)

_BROKERS = {
    "faststream.confluent.broker.broker": ConfluentConsumer,
    "faststream.kafka.broker.broker": AioKafkaConsumer,
}
"""The consumer of each of FastStream's Kafka brokers, by the module of its class."""

_RESETS = {"earliest": True, "latest": False}


class Transactions:
    """Makes each message that a handler of a broker takes one transaction; a context manager.

        broker = KafkaBroker("127.0.0.1:9092")
        app = FastStream(broker, lifespan=lambda: Transactions(broker, "127.0.0.1:9092"))

        @broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest")
        @broker.publisher("invoices")
        async def invoice(body: bytes) -> bytes: ...

    Entered before the broker starts, and left after it has stopped. While it is open, subscribers
    of the broker read committed records through a `Subscription`. What a handler returns or
    publishes through the broker, and the acknowledgement of its message, are one transaction. An
    exception aborts it, and the message comes again (G2). `AckMessage` commits; `RejectMessage` and
    `SkipMessage` drop what was published, and the message does not come again. The subscriber's
    `ack_policy` does not matter. `Context("transaction")` is the `Transaction`, for `enlist`.

    Args:
        broker: a `KafkaBroker` of `faststream.confluent` or `faststream.kafka`; all of its
            subscribers have a group.
        bootstrap_servers: addresses of brokers, as for any Kafka client; or give `connector`.
        connector: a ready connector, instead of `bootstrap_servers`.
        transaction_timeout_s: as for `TransactionClient`.
        options: limits of the subscriptions, as for `Subscription`.

    Raises:
        ArgumentError: the broker is none of FastStream's for Kafka, or an argument is of another
            type.
    """

    def __init__(
        self,
        broker: Any,
        bootstrap_servers: str | None = None,
        *,
        connector: Connector | None = None,
        transaction_timeout_s: float = 60.0,
        **options: Unpack[SubscriptionKeywords],
    ) -> None:
        modules = [cls.__module__ for cls in type(broker).__mro__]
        consumers = [_BROKERS[module] for module in modules if module in _BROKERS]
        if not consumers:
            raise ArgumentError(
                f"a {type(broker).__module__}.{type(broker).__qualname__} is no broker for Kafka",
                hint="give a KafkaBroker of faststream.confluent or faststream.kafka",
            )
        for name in ("key_deserializer", "on_undecodable", "value_deserializer"):
            if name in options:
                raise ArgumentError(
                    f"`{name}` is given, and FastStream decodes messages itself",
                    hint="give the subscriber a `decoder`",
                )
        check_connection(bootstrap_servers, connector)
        self._connector = connector or KafkaConnector(KafkaConfig(bootstrap_servers or ""))
        self._consumer: type[TransactionalConsumer] = consumers[0]
        self._options = options
        self.broker = broker
        self.client = TransactionClient(
            connector=self._connector, transaction_timeout_s=transaction_timeout_s
        )
        self.current: ContextVar[Transaction | None] = ContextVar("transaction", default=None)
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.client)
            await self.broker.connect()  # else the broker sets its own consumers later
            config = self.broker.config.broker_config
            stack.callback(setattr, config, "builder", config.builder)
            stack.callback(setattr, config, "broker_middlewares", config.broker_middlewares)
            config.builder = partial(self._consumer, self._subscription, self._failed)
            self.broker.add_middleware(partial(_Handling, self))
            self._closing = stack.pop_all()

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    def _subscription(self, topics: Any, group: str, reset: str) -> Subscription:
        if reset not in _RESETS:
            raise ArgumentError(
                f"a subscriber has `auto_offset_reset={reset!r}`",
                hint='give "earliest" or "latest"',
            )
        return Subscription(
            topics,
            group=group,
            connector=self._connector,
            from_start=_RESETS[reset],
            acknowledgements=True,
            **self._options,
        )

    def _failed(self) -> None:
        """Ends the application, whose log has the error: FastStream would read on at once."""
        app = self.broker.context.get("app")
        if app is not None:
            app.exit()


class _Handling(BaseMiddleware[Any, Any]):
    """One message, or one batch, on its way through a handler; or one call of `publish`."""

    def __init__(self, owner: Transactions, msg: Any, /, *, context: Any) -> None:
        super().__init__(msg, context=context)
        self._owner = owner
        self._sources: tuple[Source, ...] = ()
        self._stack = AsyncExitStack()
        self._reset: Token[Transaction | None] | None = None
        self._message: Any = None

    async def on_receive(self) -> None:
        """Begins the transaction, with the acknowledgement."""
        self._sources = sources_of(self.msg)
        if not self._sources or self.context.get_local("handler_") is None:
            raise UsageError(
                "the message was not read for a handler by a consumer of Stilltide",
                hint="enter `Transactions` before the broker starts; give the subscriber a handler",
            )
        async with AsyncExitStack() as stack:
            if (tracing := self._sources[0].consumer.tracing) is not None:
                messages = [source.message for source in self._sources]
                batch = isinstance(self.msg, tuple)
                stack.enter_context(tracing.processing(messages if batch else messages[0]))
            txn = await stack.enter_async_context(self._owner.client.transaction())
            for source in self._sources:
                await txn.acknowledge(source.consumer.subscription, source.message)
            stack.enter_context(self.context.scope("transaction", txn))
            self._reset = self._owner.current.set(txn)
            self._stack = stack.pop_all()

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        """Keeps the message, which tells whether the handler has refused it."""
        # With FastStream's default policy a message counts as acknowledged before its handler runs,
        # and `nack` changes nothing any more. Here nothing is acknowledged yet.
        msg.committed = None
        self._message = msg
        return await call_next(msg)

    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        """Sends in the transaction of the handler that publishes; else publishes as ever."""
        txn = self._owner.current.get()
        if txn is None or cmd.publish_type is PublishType.REQUEST:
            return await call_next(cmd)
        if cmd.timestamp_ms is not None:
            raise ArgumentError(
                "a message of a transaction is published with `timestamp_ms`",
                hint="leave `timestamp_ms` out, or put the time into a header",
            )
        producer = self._owner.broker.config.producer
        for index, body in enumerate(cmd.batch_bodies or (None,)):
            value, content_type = None, None
            if body is not None:
                value, content_type = await producer.codec.encode(body, producer.serializer)
            headers = {"content-type": content_type or "", **cmd.headers_to_publish()}
            key = cmd.key_for(index)
            await txn.send(
                cmd.destination,
                value,
                key=key.encode() if isinstance(key, str) else key,
                headers=[(name, (text or "").encode()) for name, text in headers.items()],
                partition=cmd.partition,
            )
        return None

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,  # noqa: ARG002 - FastStream's signature
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool | None:
        """Commits what the handler has done, or aborts it."""
        assert self._reset is not None, "entered"
        self._owner.current.reset(self._reset)
        if isinstance(exc_val, RejectMessage | SkipMessage):
            for consumer, message in self._sources:
                consumer.reject(message)
        error = None if isinstance(exc_val, AckMessage) else exc_val
        if error is None and getattr(self._message, "committed", None) is AckStatus.NACKED:
            error = NackMessage()  # the handler has called `nack`
        await self._stack.__aexit__(type(error) if error else None, error, exc_tb)
        return False
