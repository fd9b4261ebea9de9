"""The spans of transactions, sends, messages and links, by OpenTelemetry's conventions.

*Source*: OpenTelemetry's semantic conventions for messaging and for Kafka, as of `SCHEMA_URL`; W3C
Trace Context and Baggage, or whatever the application has set as global propagator.

*Invariants*:
- A header that the application has set is neither replaced nor doubled, and what it has set of a
  trace is not mixed with another trace.
- The context of a message is current in the task, or thread, that was given the message, until that
  one asks for the next message or leaves its loop, in whichever way; then what was current before
  is current again. No other task or thread sees a change.
- Each span ends once, at the latest when nothing refers to it any more.
- A propagator that fails hides no message and refuses no record; nor does a sampler, or a processor
  of spans, that fails when a message is taken.

A context of OpenTelemetry is attached and never detached by its token: a loop may be left in
another task than it was begun in, where the token is refused. Instead each attached context names
its `CurrentSpan`, which knows what was current before.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, TypeVar, cast
from weakref import ref

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.errors import error_text
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.tracing import CheckedHeaders, TransactionTrace
from stilltide.schemas.headers import Headers
from stilltide.schemas.values import TopicPartition

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions that names and attributes follow."""

BAGGAGE = "baggage"
"""The header of W3C Baggage, which belongs to no trace."""

T = TypeVar("T")

Send = Callable[[Headers], Coroutine[Any, Any, TopicPartition]]

_SCOPE = context.create_key("stilltide-scope")
_NOTHING = Context()

_log = get_logger(__name__)
_reported: set[tuple[str, type[Exception]]] = set()


def _report(step: str, error: Exception) -> None:
    """Logs a failure of what the application has set for its traces: each kind once a process."""
    kind = (step, type(error))
    if kind not in _reported:
        _reported.add(kind)
        _log.warning(
            "traces have failed, and records go on without; more failures like it are not logged",
            step=step,
            detail=error_text(error),
        )


def tracer() -> Tracer | None:
    """The application's tracer for Stilltide; None: no provider is set, or traces are off."""
    if isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider
    ):
        return None
    number = None
    with suppress(PackageNotFoundError):  # a checkout that is not installed
        number = version("stilltide")
    made = trace.get_tracer("stilltide", number, schema_url=SCHEMA_URL)
    return None if isinstance(made, trace.NoOpTracer) else made


class _HeaderGetter:
    """Reads the headers of a record for propagators; names have upper or lower case."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        values = [
            value.decode("utf-8", "replace")
            for name, value in carrier
            if value is not None and name.lower() == key.lower()
        ]
        return values or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


_GETTER = cast("Any", _HeaderGetter())


def context_of(headers: Headers | None) -> Context:
    """What the headers of a record say of its trace and its baggage; empty if they say nothing."""
    if not headers:
        return _NOTHING
    try:
        return propagate.extract(headers, _NOTHING, _GETTER)
    except Exception as error:  # noqa: BLE001 - not of ours: the record would be lost
        _report("extract", error)
        return _NOTHING


def _link_to(created: Context) -> list[Link]:
    span = trace.get_current_span(created).get_span_context()
    return [Link(span)] if span.is_valid else []


def _links(of_records: Iterable[Headers | None]) -> list[Link]:
    """Links to the traces of records with these headers."""
    return [link for headers in of_records for link in _link_to(context_of(headers))]


def _names(headers: Headers) -> set[str] | None:
    """The names of headers in lower case; None: these are no headers, which `send` refuses."""
    try:
        return {name.lower() for name, _ in headers}
    except (AttributeError, TypeError, ValueError):
        return None


def with_context(headers: Headers, names: set[str], current: Context) -> Headers:
    """The headers of a record, and after them those of a context, as far as they are not set.

    Args:
        headers: what the application has set.
        names: the names of these headers in lower case.
        current: the context whose trace and baggage go with the record.
    """
    carrier: dict[str, str] = {}
    added: list[tuple[str, bytes]] = []
    try:
        propagate.inject(carrier, current)
        own = names & {field.lower() for field in propagate.get_global_textmap().fields}
        for name, text in carrier.items():
            lower = name.lower()
            if lower not in names and (lower == BAGGAGE or own <= {BAGGAGE}):
                added.append((name, text.encode()))
    except Exception as error:  # noqa: BLE001 - not of ours: the record would be refused
        _report("inject", error)
    return [*headers, *added]


def _here() -> tuple[int, int]:
    """Names the running task and thread."""
    task = None
    with suppress(RuntimeError):  # a thread without an event loop
        task = asyncio.current_task()
    return threading.get_ident(), id(task)


class CurrentSpan:
    """A span that is current in one task or thread, and what was current before.

    Args:
        owner: what attaches the span, and leaves it.
        span: the span.
        base: the context in which the span is current.
        before: the context that is current again afterwards.
        stays: whether others leave the scope as it is, until `owner` leaves it.

    Attributes:
        attached: a reference to the context that names this scope.
        carried: the headers of that context, which never changes, once they are needed; kept in a
            trace that is not sampled alone.
    """

    __slots__ = (
        "_ended",
        "_where",
        "attached",
        "before",
        "carried",
        "owner",
        "span",
        "stays",
    )

    def __init__(
        self, owner: object, span: Span, base: Context, before: Context, *, stays: bool = False
    ) -> None:
        self.owner, self.span, self.before, self.stays = owner, span, before, stays
        self._ended = stays  # such a span is ended by its owner
        self._where = None if stays else _here()
        self.carried: Headers | None = None
        attached = context.set_value(_SCOPE, self, trace.set_span_in_context(span, base))
        self.attached = ref(attached)
        context.attach(attached)

    def end(self, error: BaseException | None = None) -> None:
        """Ends the span; later calls do nothing."""
        if not self._ended:
            self._ended = True
            if error is not None:
                record_error(self.span, error)
            self.span.end()

    def __del__(self) -> None:
        """The task of the scope has ended without a further call."""
        self.end()

    @classmethod
    def leave(cls, owner: object, error: BaseException | None = None) -> None:
        """Ends the scope of this owner, and makes current what was current before.

        Within an inner scope that stays, that one stays current. A task that was started within the
        scope does not end it.
        """
        scope, within = context.get_value(_SCOPE), False
        while isinstance(scope, cls) and scope.owner is not owner:
            within = within or scope.stays
            scope = scope.before.get(_SCOPE)
        if isinstance(scope, cls):
            if not within:
                scope.stays = False
                context.attach(scope.before)
            if scope._where is not None and scope._where == _here():  # noqa: SLF001 - of this class
                scope.end(error)


def record_error(span: Span, error: BaseException) -> None:
    """The span has failed by this error."""
    span.set_attribute("error.type", type(error).__qualname__)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))


class Tracing:
    """The spans of one client, subscription or link.

    Args:
        tracer: makes the spans.
        client_id: name of the client in Kafka.
        group: name of the consumer group; empty for a client that has none.
    """

    LINKS_MAX: ClassVar = 128
    """Links of one span: as many as OpenTelemetry's SDK keeps by default."""

    def __init__(self, tracer: Tracer, client_id: str, group: str) -> None:
        self._tracer = tracer
        self._attributes: dict[str, str | int | bool] = {
            "messaging.system": "kafka",
            "messaging.client.id": client_id,
        }
        if group:
            self._attributes["messaging.consumer.group.name"] = group

    def transaction(self) -> "TransactionSpan":
        """The trace of a new transaction."""
        return TransactionSpan(self._tracer, self._attributes)

    def send(
        self, write: Callable[..., Coroutine[Any, Any, TopicPartition]], txn: object, *record: Any
    ) -> Coroutine[Any, Any, TopicPartition]:
        """Calls a method of `Transaction` that writes, so that a context goes with the record.

        In a trace that is not sampled, the record takes that trace's context, without a span.

        Args:
            write: the method.
            txn: the transaction.
            record: topic, value, key, headers and partition.
        """
        topic, value, key, headers, partition = record
        current = context.get_current()
        scope = current.get(_SCOPE)
        if not (isinstance(scope, CurrentSpan) and scope.attached() is current):
            scope = None  # another span is current, or other baggage
        elif not headers and scope.carried is not None:
            return write(txn, topic, value, key, scope.carried, partition)
        span = trace.get_current_span(current).get_span_context()
        if span.trace_flags.sampled or not span.is_valid:
            send = partial(write, txn, topic, value, key, partition=partition)
            return self._send(send, topic, headers, tombstone=value is None)
        names = _names(headers)
        if names is not None:
            headers = with_context(headers, names, current)
        if names == set():
            headers = CheckedHeaders(headers)
            if scope is not None:
                scope.carried = headers
        return write(txn, topic, value, key, headers, partition)

    async def _send(
        self, send: Send, topic: str, headers: Headers, *, tombstone: bool
    ) -> TopicPartition:
        """As `send`, in a span: that of the call; the record is durable after the commit."""
        attributes = self._operation("send", topic)
        if tombstone:
            attributes["messaging.kafka.message.tombstone"] = True
        names, links, kind = _names(headers), [], SpanKind.PRODUCER
        if names and (links := _link_to(context_of(headers))):
            kind = SpanKind.CLIENT  # the record was created elsewhere, and keeps that trace
        span = self._tracer.start_span(
            f"send {topic}", kind=kind, attributes=attributes, links=links
        )
        try:
            if names is not None:
                headers = with_context(headers, names, trace.set_span_in_context(span))
            data = await send(headers)
            span.set_attribute("messaging.destination.partition.id", str(data.partition))
        except Exception as error:
            record_error(span, error)
            raise
        finally:
            span.end()
        return data

    def left(self, owner: object | None = None) -> int:
        """The caller has done what it was given, and waits; returns the time, nanoseconds."""
        CurrentSpan.leave(self if owner is None else owner)
        return time.time_ns()

    def taken(
        self,
        messages: Record | Sequence[Record],
        began_ns: int | None = None,
        owner: object | None = None,
    ) -> CurrentSpan | None:
        """The caller is given messages, and processes them from now on.

        Returns None, and leaves the context as it is, if no span can be made.

        Args:
            messages: one message, or a batch of one partition.
            began_ns: when the caller began to wait, as `left` says; None: nobody waited.
            owner: what will leave the scope; None: this object.
        """
        try:
            return self._taken(messages, began_ns, self if owner is None else owner)
        except Exception as error:  # noqa: BLE001 - not of ours: the messages would be lost
            _report("process", error)
            return None

    def _taken(
        self, messages: Record | Sequence[Record], began_ns: int | None, owner: object
    ) -> CurrentSpan:
        ambient = context.get_current()
        single = isinstance(messages, Record)
        first = cast("Record", messages if single else messages[0])
        created = context_of(first.headers) if single else _NOTHING
        batch = () if single else cast("Sequence[Record]", messages)[: self.LINKS_MAX]
        links = _link_to(created) if single else _links(message.headers for message in batch)
        current = trace.get_current_span(ambient)
        if began_ns is not None and current.is_recording():
            received = self._operation("receive", first.topic)
            self._of_messages(received, messages, first)
            self._tracer.start_span(
                f"receive {first.topic}",
                ambient,
                SpanKind.CLIENT,
                received,
                links,
                start_time=began_ns,
            ).end()
        attributes = self._operation("process", first.topic)
        self._of_messages(attributes, messages, first)
        has_parent = current.get_span_context().is_valid
        span = self._tracer.start_span(
            f"process {first.topic}",
            ambient if has_parent else created,
            SpanKind.CONSUMER,
            attributes,
            links,
        )
        base = Context({**ambient, **created})
        return CurrentSpan(owner, span, base, ambient)

    def processed(self, messages: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The same messages, each current while the caller's task processes it."""
        return ProcessedMessages(self, messages)

    @contextmanager
    def processing(self, messages: Record | Sequence[Record]) -> Iterator[None]:
        """The caller processes messages in this block, as `taken`."""
        owner = object()
        self.taken(messages, owner=owner)
        try:
            yield
        except BaseException as error:
            CurrentSpan.leave(owner, error)
            raise
        CurrentSpan.leave(owner)

    def copied(
        self, source: str, target: str, began_ns: int, count: int, first: Sequence[Headers | None]
    ) -> None:
        """A link has committed a transaction: one span, with links to the traces of its records.

        Args:
            source: cluster to copy from.
            target: cluster to copy to.
            began_ns: when the transaction began, nanoseconds since 1970.
            count: number of records.
            first: headers of the first records, at most `LINKS_MAX`.
        """
        attributes = {
            **self._attributes,
            "messaging.operation.name": "replicate",
            "messaging.operation.type": "process",
            "messaging.batch.message_count": count,
            "stilltide.link.source": source,
            "stilltide.link.target": target,
        }
        self._tracer.start_span(
            "replicate",
            _NOTHING,
            SpanKind.CONSUMER,
            attributes,
            _links(first),
            start_time=began_ns,
        ).end()

    def _operation(self, name: str, topic: str) -> dict[str, str | int | bool]:
        return {
            **self._attributes,
            "messaging.operation.name": name,
            "messaging.operation.type": name,
            "messaging.destination.name": topic,
        }

    @staticmethod
    def _of_messages(
        attributes: dict[str, str | int | bool], messages: Record | Sequence[Record], first: Record
    ) -> None:
        attributes["messaging.destination.partition.id"] = str(first.partition)
        if not isinstance(messages, Record):
            attributes["messaging.batch.message_count"] = len(messages)
            return
        attributes["messaging.kafka.offset"] = first.offset
        if first.value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        if (deliveries := first.deliveries) > 1:
            attributes["stilltide.deliveries"] = deliveries


class ProcessedMessages(AsyncGenerator[T, None]):
    """The messages of a loop, each current while the loop's body runs.

    A loop that is left by `break`, `return` or an error drops its iterator at once, so `__del__`
    runs in the task of the loop, where the context is current.
    """

    def __init__(self, tracing: Tracing, messages: AsyncGenerator[T, None]) -> None:
        self._tracing = tracing
        self._messages = messages
        self._owner = object()  # not the iterator, which the current context would keep alive
        self._scope: CurrentSpan | None = None

    async def asend(self, value: None) -> T:  # noqa: ARG002 - of generators
        """The next message."""
        began_ns = self._left()
        item = await anext(self._messages)
        self._scope = self._tracing.taken(cast("Any", item), began_ns, self._owner)
        return item

    async def athrow(self, *error: Any) -> T:
        """As of the generator."""
        self._left()
        return await self._messages.athrow(*error)

    async def aclose(self) -> None:
        """As of the generator."""
        self._left()
        await self._messages.aclose()

    def __del__(self) -> None:
        """The loop was left."""
        self._left()

    def _left(self) -> int:
        began_ns = self._tracing.left(self._owner)
        scope, self._scope = self._scope, None
        if scope is not None:  # the loop goes on in another task than it was in
            scope.end()
        return began_ns


class TransactionSpan(TransactionTrace):
    """The span of one transaction.

    Args:
        tracer: makes the span.
        attributes: of the client.
    """

    def __init__(self, tracer: Tracer, attributes: dict[str, str | int | bool]) -> None:
        self._tracer = tracer
        self._attributes = attributes
        self._span: Span | None = None
        self._over = False

    def begin(self) -> None:
        """See `TransactionTrace`; also below."""
        if self._span is None and not self._over:
            self._span = self._tracer.start_span("transaction", attributes=self._attributes)

    def enter(self) -> None:  # noqa: D102
        if self._span is not None:
            before = context.get_current()
            CurrentSpan(self, self._span, before, before, stays=True)

    def leave(self) -> None:  # noqa: D102
        CurrentSpan.leave(self)

    def opened(self, txn: str, *, ahead: bool) -> None:  # noqa: D102
        if self._span is not None and not self._over:
            self._span.set_attribute("stilltide.transaction.id", txn)
        self.event("open", opened_ahead=ahead)

    def event(self, name: str, **attributes: str | int | bool) -> None:  # noqa: D102
        if self._span is not None and not self._over:
            self._span.add_event(
                name, {f"stilltide.transaction.{it}": value for it, value in attributes.items()}
            )

    def failed(self, error: BaseException) -> None:  # noqa: D102
        if self._span is not None and not self._over:
            record_error(self._span, error)

    def ended(self, outcome: str) -> None:  # noqa: D102
        span, over, self._over = self._span, self._over, True
        if span is not None and not over:
            span.set_attribute("stilltide.transaction.outcome", outcome)
            span.end()

    def __del__(self) -> None:
        """Nothing refers to the transaction any more: its time-out, or its token, ends it."""
        self.ended("left")
