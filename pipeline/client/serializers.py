"""The serializers and deserializers of an application: which there is for a topic, and its call.

*Source*: docs/schemas.md.

*Invariants*:
- Confluent's objects are told from other callables by their class alone: `Serializer` and
  `Deserializer` of `confluent_kafka.serialization`. They are called with a `SerializationContext`,
  and for None, too. Every other callable is called with the value alone, and never for None.
- An object of Confluent's that may wait for a registry runs on a thread: its client has no time-out
  by default, and would stop everything else on the event loop.
- A failure is the record's own, unless it comes from the network or from the registry.
"""

import asyncio
import itertools
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from inspect import isawaitable
from typing import Any, NamedTuple, TypeAlias, cast

from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.readers import Record, RedeliveredRecord, TimedRecord
from stilltide.pipeline.core.pending_ack.redeliveries import bounded
from stilltide.pipeline.errors import (
    ArgumentError,
    SerializerError,
    UndecodableError,
    error_text,
)

Serializers: TypeAlias = Callable[..., Any] | Mapping[str, Callable[..., Any]]
"""One serializer, or deserializer, for all topics, or one for each topic that a mapping names. Keys
or values of other topics stay bytes."""

KEY, VALUE = "key", "value"

_SERIALIZATION = "confluent_kafka.serialization"
_REGISTRY = "confluent_kafka.schema_registry"
_NOT_FOUND = range(40_400, 40_500)
"""Codes of a registry that does not have a schema. An answer of another server has no such code."""


class _Call(NamedTuple):
    """How a serializer or deserializer is called.

    Attributes:
        function: the callable.
        contextual: whether it is Confluent's.
        blocking: whether the call may wait for a registry.
    """

    function: Callable[..., Any]
    contextual: bool
    blocking: bool


class _Part(NamedTuple):
    """A key or a value: what its call has returned, perhaps an awaitable, or raised."""

    field: str
    result: Any
    error: Exception | None = None


class _Calls(NamedTuple):
    """The calls for the keys and the values of one topic; None: they stay bytes."""

    key: _Call | None
    value: _Call | None

    @property
    def blocking(self) -> bool:
        """Whether one of the calls may wait for a registry."""
        return any(call is not None and call.blocking for call in self)

    def begin(self, topic: str, key: Any, value: Any, headers: list[Any]) -> list[_Part]:
        """Makes both calls; what they return may have to be awaited."""
        return [
            _begin(self.key, topic, KEY, key, headers),
            _begin(self.value, topic, VALUE, value, headers),
        ]

    def begin_each(self, records: Sequence[Record]) -> list[list[_Part]]:
        """Makes both calls for each record of the topic, as `begin`."""
        return [
            self.begin(record.topic, record.key, record.value, [*(record.headers or ())])
            for record in records
        ]

    async def run(self, topic: str, key: Any, value: Any, headers: list[Any]) -> list[_Part]:
        """Makes both calls, one after the other."""
        return [
            await _finished(_begin(self.key, topic, KEY, key, headers)),
            await _finished(_begin(self.value, topic, VALUE, value, headers)),
        ]


class FieldSerializers:
    """The serializers, or deserializers, of keys and values.

    Args:
        key: those of keys; None: keys stay bytes.
        value: those of values; None: values stay bytes.
    """

    def __init__(self, key: Serializers | None, value: Serializers | None) -> None:
        self._key = key
        self._value = value
        self._calls: dict[str, _Calls] = {}

    async def serialized(
        self, topic: str, key: Any, value: Any, headers: list[tuple[str, bytes | None]]
    ) -> tuple[Any, Any]:
        """Key and value after their serializers, which may add headers.

        Raises:
            SerializerError: a serializer has failed, or has returned something else than bytes.
        """
        calls = self._of(topic)
        if calls.blocking:
            begun = await asyncio.to_thread(calls.begin, topic, key, value, headers)
            parts = [await _finished(part) for part in begun]
        else:
            parts = await calls.run(topic, key, value, headers)
        for call, part in zip(calls, parts, strict=True):
            if part.error is not None:
                raise _not_serialized(topic, part.field, error_text(part.error)) from part.error
            if call is not None and not isinstance(part.result, bytes | None):
                returned = f"it has returned a {type(part.result).__name__}, not bytes"
                raise _not_serialized(topic, part.field, returned)
        return parts[0].result, parts[1].result

    def fields(self, topic: str) -> list[str]:
        """Which of a topic's key and value have a call."""
        calls = self._of(topic)
        return [field for field, call in zip((KEY, VALUE), calls, strict=True) if call is not None]

    def blocks(self, topic: str) -> bool:
        """Whether a call for the topic may wait for a registry, and so runs on a thread."""
        return self._of(topic).blocking

    async def deserialized(
        self, records: Sequence[Record]
    ) -> list[Record | UndecodableError | SerializerError]:
        """For each record of a partition the message, or why there is none.

        Ends behind a `SerializerError`: what follows would fail for the same reason.
        """
        topic = records[0].topic
        calls = self._of(topic)
        begun: list[list[_Part]] = []
        if calls.blocking:
            begun = await asyncio.to_thread(calls.begin_each, records)
        outcomes: list[Record | UndecodableError | SerializerError] = []
        try:
            for index, record in enumerate(records):
                if begun:
                    parts = [await _finished(part) for part in begun[index]]
                else:
                    headers = [*(record.headers or ())]
                    parts = await calls.run(topic, record.key, record.value, headers)
                outcomes.append(_outcome(record, parts))
                if isinstance(outcomes[-1], SerializerError):
                    break
        finally:
            for part in itertools.chain.from_iterable(begun):
                result: object = part.result
                if isinstance(result, Coroutine):  # no effect on one that has ended
                    cast("Coroutine[Any, Any, Any]", result).close()
        return outcomes

    def _of(self, topic: str) -> _Calls:
        calls = self._calls.get(topic)
        if calls is None:
            calls = self._calls[topic] = _Calls(_call(self._key, topic), _call(self._value, topic))
        return calls


def field_serializers(
    key: Serializers | None, value: Serializers | None
) -> FieldSerializers | None:
    """The serializers that an application gave; None: it gave none."""
    return None if key is None and value is None else FieldSerializers(key, value)


def check_serializers(name: str, given: object, *, deserializer: bool = False) -> None:
    """Passes an argument that is None, a callable, or a mapping of topics to callables.

    Raises:
        ArgumentError: it is something else; or a serializer instead of a deserializer, a class
            instead of an object, or an object that has to be awaited.
        InvalidTextError: no topic can have a name of the mapping.
    """
    if given is None:
        return
    if not isinstance(given, Mapping):
        _check_callable(f"`{name}`", given, deserializer=deserializer)
        return
    for topic, function in cast("Mapping[object, object]", given).items():
        check_topic_name(topic, f"a topic of `{name}`")
        _check_callable(f"`{name}` of {topic}", function, deserializer=deserializer)


def _check_callable(what: str, function: object, *, deserializer: bool) -> None:
    kind = "deserializer" if deserializer else "serializer"
    if isinstance(function, Coroutine):
        cast("Coroutine[Any, Any, Any]", function).close()
        raise ArgumentError(
            f"{what} is a coroutine, not a {kind}",
            hint="await it first: `await AsyncAvroSerializer(...)` makes the object",
        )
    if not callable(function):
        raise ArgumentError(
            f"{what} is a {type(function).__name__}, not a {kind}",
            hint=f"give a callable, a {kind} of confluent_kafka, or a mapping of topics to them",
        )
    confluent: Any = sys.modules.get(_SERIALIZATION)
    if confluent is None:
        return
    wanted, other = confluent.Serializer, confluent.Deserializer
    if deserializer:
        wanted, other = other, wanted
    if isinstance(function, other):
        raise ArgumentError(
            f"{what} is a {type(function).__name__}, which is no {kind}",
            hint=f"give the {kind} that belongs to it",
        )
    if isinstance(function, type) and issubclass(function, (wanted, other)):
        raise ArgumentError(
            f"{what} is the class {function.__name__}, not an object of it",
            hint=f"make the object: {function.__name__}(...)",
        )


def _call(given: Serializers | None, topic: str) -> _Call | None:
    function = given if given is None or callable(given) else given.get(topic)
    if function is None:
        return None
    # Who has made an object of a class has imported the class's module.
    confluent: Any = sys.modules.get(_SERIALIZATION)
    registry: Any = sys.modules.get(f"{_REGISTRY}.serde")
    return _Call(
        function,
        confluent is not None
        and isinstance(function, (confluent.Serializer, confluent.Deserializer)),
        registry is not None and isinstance(function, registry.BaseSerde),
    )


def _begin(call: _Call | None, topic: str, field: str, part: Any, headers: list[Any]) -> _Part:
    if call is None or (part is None and not call.contextual):
        return _Part(field, part)
    try:
        if not call.contextual:
            return _Part(field, call.function(part))
        confluent: Any = sys.modules[_SERIALIZATION]
        context = confluent.SerializationContext(topic, confluent.MessageField(field), headers)
        return _Part(field, call.function(part, context))
    except Exception as error:  # noqa: BLE001 - an application's callable may raise anything
        return _Part(field, None, error)


async def _finished(part: _Part) -> _Part:
    """The part with the result of what its call has returned."""
    if part.error is not None or not isawaitable(part.result):
        return part
    try:
        return part._replace(result=await part.result)
    except Exception as error:  # noqa: BLE001 - as above
        return part._replace(result=None, error=error)


def _outcome(record: Record, parts: Sequence[_Part]) -> Record | UndecodableError | SerializerError:
    for part in parts:
        if part.error is not None:
            failed = _not_answered if _is_outage(part.error) else _undecodable
            return failed(record, part.field, part.error)
    key, value = (part.result for part in parts)
    message = Record(record.topic, record.partition, record.offset, key, value, record.headers)
    if isinstance(record, TimedRecord):
        message = TimedRecord.at(message, record.timestamp_ms)
    if isinstance(record, RedeliveredRecord):
        return RedeliveredRecord.of(message, record.deliveries)
    return message


def _is_outage(error: Exception) -> bool:
    """Whether a failure is the network's or the registry's, and not the record's.

    Without that, an outage of the registry would skip every record, or move it to a dead-letter
    topic.
    """
    if isinstance(error, OSError):  # with ConnectionError, TimeoutError and ssl.SSLError
        return True
    for cls in type(error).__mro__:
        package = cls.__module__.partition(".")[0]
        if package.startswith("httpx") and cls.__name__ == "TransportError":
            return True
        if cls.__module__.startswith(_REGISTRY) and cls.__name__ == "SchemaRegistryError":
            return getattr(error, "error_code", None) not in _NOT_FOUND
        if cls.__module__.startswith(_REGISTRY) and cls.__name__ == "OAuthTokenError":
            return True
    return False


def _not_serialized(topic: str, field: str, why: str) -> SerializerError:
    error = SerializerError(
        f"the {field} cannot be serialized",
        detail=bounded(why),
        hint="nothing was sent, and the transaction goes on: send another value, or abort",
        topic=topic,
    )
    error.field = field
    return error


def _not_answered(record: Record, field: str, cause: Exception) -> SerializerError:
    error = SerializerError(
        f"what the deserializer of the {field} asks does not answer",
        detail=bounded(error_text(cause)),
        hint="the record was not passed: read on when the registry answers",
        data=record.data,
        offset=record.offset,
    )
    error.field = field
    error.__cause__ = cause
    return error


def _undecodable(record: Record, field: str, cause: Exception) -> UndecodableError:
    error = UndecodableError(
        f"the {field} cannot be decoded",
        detail=bounded(error_text(cause)),
        hint="acknowledge `error.record`, or commit, to go on behind it for good; "
        '`on_undecodable="skip"` or "dead_letter" does so by itself',
        data=record.data,
        offset=record.offset,
    )
    error.field = field
    error.record = record
    error.__cause__ = cause
    return error
