"""A wrong argument, or a call at a wrong time, gave `AttributeError` or a bare `TypeError`.

The calls are made from the signatures of all public names, so a new name is called, too. A call
either does its work or raises an error of `stilltide.errors`, which says what to write instead.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

import stilltide
from stilltide import spark, sync, testing
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.errors import StilltideError
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.client.bounds import TransactionKeywords
from stilltide.pipeline.client.subscription_options import SubscriptionKeywords
from stilltide.pipeline.client.sync.subscription import OpenKeywords
from stilltide.pipeline.client.sync.transactions import ClientKeywords
from stilltide.pipeline.client.transaction import Transaction
from stilltide.pipeline.testing.cluster import MemoryCluster, SyncMemoryCluster
from stilltide.schemas.coordinator.prepared_tokens import (
    SECRET_BYTES,
    PreparedToken,
    encode_token,
)
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId

WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    float("nan"),
    2**70,
    "",
    "a b",
    "\x00",
    "\udcff",
    "x" * 40_000,
    b"bytes",
    [],
    [None],
    {},
    {1: 2},
    object(),
)
"""What a program may give by mistake for any argument."""

VALID: dict[str, Any] = {
    "acknowledgements": True,
    "allow_compacted": False,
    "assignment_timeout_s": 1.0,
    "bootstrap_servers": None,
    "buffer_records_max": 10,
    "client_id": "client",
    "connector": None,  # that of the cluster
    "data": TopicPartition("orders", 0),
    "dead_letter_topic": None,
    "decider": "orders-db",
    "deliveries_max": 2,
    "direct_line": False,
    "end_offsets": {TopicPartition("orders", 0): EndOffset(0)},
    "error": "a reason",
    "from_start": True,
    "group": "group",
    "headers": [("name", b"value")],
    "key": b"key",
    "key_deserializer": None,
    "key_serializer": None,
    "linger_ms": 0,
    "message": None,  # one of the subscription
    "metadata_max_age_s": 1.0,
    "name": "name",
    "offset": Offset(0),
    "on_undecodable": "raise",
    "open_transactions_max": 10,
    "out_of_range": "raise",
    "partition": 0,
    "partitions": None,
    "records_max": 10,
    "redelivery_delay_s": 1.0,
    "redelivery_delay_s_max": 1.0,
    "redelivery_factor": 2.0,
    "request_timeout_s": 1.0,
    "resend_s": 1.0,
    "since_ms": None,
    "subscription": None,  # that of the message
    "timeout_s": 1.0,
    "timestamp_ms": 0,
    "token": encode_token(
        PreparedToken("another cluster", TxnId(0, 0), bytes(SECRET_BYTES), bytes(16))
    ),
    "topic": "orders",
    "topics": ["orders"],
    "transaction_timeout_s": 1.0,
    "txn": TxnId(0, 0),
    "unacknowledged_records_max": 10,
    "unavailable_timeout_s": 1.0,
    "undecided_records_max": 10,
    "undecided_timeout_s": 1.0,
    "value": b"value",
    "value_deserializer": None,
    "value_serializer": None,
    "wait_s_max": 0.1,
    "wait_visible": False,
}
"""A valid value of each argument of a public call; a new argument needs one here."""

KEYWORDS: dict[Any, Any] = {
    Subscription: SubscriptionKeywords,
    TransactionClient: TransactionKeywords,
    sync.Subscription: OpenKeywords,
    sync.TransactionClient: ClientKeywords,
}
"""The names behind `**options`."""

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (stilltide, sync, testing)
    for name in module.__all__
}
OBJECTS = {
    Subscription,
    Transaction,
    TransactionClient,
    MemoryCluster,
    sync.Subscription,
    sync.Transaction,
    sync.TransactionClient,
    SyncMemoryCluster,
}
"""The classes whose objects are opened; other public names are values, settings and errors."""

OTHERS = {
    "Settings",
    "load_settings",
    "tune",
    "KafkaConfig",
    "KafkaConnector",
    "Decisions",
    "PreparedTransaction",
    "MessageBatch",
}


def _is_value(item: Any) -> bool:
    return isinstance(item, type) and (issubclass(item, tuple | Exception))


def test_every_public_class_is_called_here() -> None:
    """A new public name is a value, an error, a setting, or one whose calls are made here."""
    left = {
        name
        for name, item in PUBLIC.items()
        if not _is_value(item) and item not in OBJECTS and name.rpartition(".")[2] not in OTHERS
    }
    assert left == set()


def _parameters(call: Callable[..., Any], owner: Any = None) -> list[str]:
    """The names of a call's arguments, those behind `**options` too."""
    found: list[str] = []
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found += [it for it in KEYWORDS[owner].__annotations__ if it not in found]
        elif name != "self":
            found.append(name)
    return found


def _methods(kind: type) -> list[str]:
    """The methods and properties of a class for applications, iteration included."""
    named = [
        name
        for name in dir(kind)
        if not name.startswith("_")
        and "not for applications" not in str(getattr(kind, name).__doc__)
    ]
    return named + [name for name in ("__anext__", "__next__") if hasattr(kind, name)]


def _calls(kind: type) -> Iterator[tuple[str, str, Any]]:
    """Method, argument and wrong value of each call; without argument: a call as it is meant."""
    for name in _methods(kind):
        yield name, "", None
        method = getattr(kind, name)
        if callable(method):
            for argument in _parameters(method):
                for wrong in WRONG:
                    yield name, argument, wrong


async def _waited(awaited: Any) -> None:
    """Waits for what a call returned, but not for messages that never come."""
    if inspect.isasyncgen(awaited):
        awaited = anext(awaited, None)
    if inspect.isawaitable(awaited):
        task = asyncio.ensure_future(awaited)
        await asyncio.wait({task}, timeout=0.02)
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _outcome(work: Callable[[], Any]) -> str:
    """What a call did, if it is a fault: an error of another kind."""
    try:
        await _waited(work())
    except (StilltideError, StopAsyncIteration, StopIteration):
        return ""
    except BaseException as error:  # noqa: BLE001 - the fault that is looked for
        return repr(error)
    return ""


def _outcome_now(work: Callable[[], Any]) -> str:
    """As `_outcome`, of a call that is not awaited."""
    try:
        returned = work()
        if inspect.isgenerator(returned):
            next(returned, None)
            returned.close()
    except (StilltideError, StopIteration):
        return ""
    except BaseException as error:  # noqa: BLE001 - the fault that is looked for
        return repr(error)
    return ""


class Scene:
    """A memory cluster with records, and objects of the public classes on it.

    Args:
        cluster: the cluster.
        of_module: `stilltide`, or `stilltide.sync`.
    """

    def __init__(self, cluster: MemoryCluster | SyncMemoryCluster, of_module: Any) -> None:
        self.cluster = cluster
        self.of_module = of_module
        self.client: Any = of_module.TransactionClient(connector=cluster.connector)
        self.subscription: Any = self.make(of_module.Subscription)
        self.given: dict[str, Any] = {}

    def make(self, kind: type) -> Any:
        """An object that is not entered yet."""
        if kind is self.of_module.Transaction:
            return self.client.transaction()
        if kind in {MemoryCluster, SyncMemoryCluster}:
            return kind({"orders": 1})
        if kind is self.of_module.TransactionClient:
            return kind(connector=self.cluster.connector)
        group, connector = f"group-{uuid4()}", self.cluster.connector
        return kind(["orders"], group=group, connector=connector, acknowledgements=True)

    def delivered(self, message: Any) -> None:
        """The subscription has returned a message, which calls are given."""
        connector, subscription = self.cluster.connector, self.subscription
        self.given = VALID | {
            "connector": connector,
            "message": message,
            "subscription": subscription,
        }

    def arguments(self, call: Any, owner: Any, argument: str, wrong: Any) -> dict[str, Any]:
        """Valid values of all arguments, and a wrong value of one."""
        names = _parameters(call, owner)
        assert set(names) <= VALID.keys(), f"VALID needs a value of {set(names) - VALID.keys()}"
        values = {name: self.given[name] for name in names}
        return values | ({argument: wrong} if argument else {})

    def work(self, item: Any, name: str, argument: str, wrong: Any) -> Callable[[], Any]:
        """A call of a method, or a look at a property."""
        method = getattr(type(item), name)
        if not callable(method):
            return lambda: getattr(item, name)
        arguments = self.arguments(method, type(item), argument, wrong)
        return lambda: getattr(item, name)(**arguments)


RECORDS = 500


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A scene of the classes whose calls are awaited."""
    async with MemoryCluster({"orders": 1}) as cluster:
        for _ in range(RECORDS):
            cluster.append("orders", b"value")
        scene = Scene(cluster, stilltide)
        async with scene.client, scene.subscription:
            scene.delivered(await anext(scene.subscription))
            yield scene


@pytest.fixture
def sync_scene() -> Iterator[Scene]:
    """A scene of the classes for programs without an event loop."""
    with SyncMemoryCluster({"orders": 1}) as cluster:
        for _ in range(RECORDS):
            cluster.append("orders", b"value")
        scene = Scene(cluster, sync)
        with scene.client, scene.subscription:
            scene.delivered(next(scene.subscription))
            yield scene


STATES = pytest.mark.parametrize("state", ["not entered", "open", "left"])
ENDING = {"abort", "close", "commit"}


@STATES
@pytest.mark.parametrize(
    "kind",
    [Subscription, Transaction, TransactionClient, MemoryCluster],
    ids=lambda kind: kind.__name__,
)
async def test_each_call_does_its_work_or_raises_a_typed_error(
    scene: Scene, kind: type, state: str
) -> None:
    """With every wrong value of every argument, and before, inside of and after its block."""
    faults: dict[str, str] = {}
    async with contextlib.AsyncExitStack() as stack:
        item: Any = None
        for name, argument, wrong in _calls(kind):
            if item is None or not argument or name in ENDING:
                item = scene.make(kind)
                if state != "not entered":
                    await item.__aenter__()
                    stack.push_async_exit(_quietly(item))
                if state == "left":
                    await item.__aexit__(None, None, None)
            if fault := await _outcome(scene.work(item, name, argument, wrong)):
                faults[f"{name}({argument}={wrong!r:.20})"] = fault
    assert faults == {}


@STATES
@pytest.mark.parametrize(
    "kind",
    [sync.Subscription, sync.Transaction, sync.TransactionClient, SyncMemoryCluster],
    ids=lambda kind: kind.__name__,
)
def test_each_call_without_a_loop_does_its_work_or_raises_a_typed_error(
    sync_scene: Scene, kind: type, state: str
) -> None:
    """As those that are awaited."""
    faults: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        item: Any = None
        for name, argument, wrong in _calls(kind):
            if item is None or not argument or name in ENDING:
                item = sync_scene.make(kind)
                if state != "not entered":
                    item.__enter__()
                    stack.push(_quietly_now(item))
                if state == "left":
                    item.__exit__(None, None, None)
            if fault := _outcome_now(sync_scene.work(item, name, argument, wrong)):
                faults[f"{name}({argument}={wrong!r:.20})"] = fault
    assert faults == {}


def _quietly(item: Any) -> Callable[..., Any]:
    async def leave(*_: object) -> None:
        with contextlib.suppress(StilltideError):
            await item.__aexit__(None, None, None)

    return leave


def _quietly_now(item: Any) -> Callable[..., Any]:
    def leave(*_: object) -> None:
        with contextlib.suppress(StilltideError):
            item.__exit__(None, None, None)

    return leave


@pytest.mark.parametrize(
    "kind", [Subscription, TransactionClient, MemoryCluster], ids=lambda kind: kind.__name__
)
async def test_each_argument_of_a_constructor_is_checked(scene: Scene, kind: type) -> None:
    """A wrong argument is refused when the object is made, or has no effect at all."""
    faults: dict[str, str] = {}
    for argument in _parameters(kind, kind):
        for wrong in WRONG:
            arguments = scene.arguments(kind, kind, argument, wrong)
            if argument == "bootstrap_servers":
                arguments["connector"] = None
            if fault := await _outcome(lambda arguments=arguments: kind(**arguments) and None):
                faults[f"{argument}={wrong!r:.20}"] = fault
    assert faults == {}


def test_each_setting_is_checked() -> None:
    """`KafkaConfig` and `load_settings` refuse a wrong value by a typed error."""
    faults: dict[str, str] = {}
    for call, valid in (
        (KafkaConfig, {"bootstrap_servers": "127.0.0.1:9092"}),
        (stilltide.load_settings, {}),
    ):
        names = [name for name in inspect.signature(call).parameters if name != "lines"]
        names += list(stilltide.Settings.model_fields) if call is stilltide.load_settings else []
        for name in names:
            for wrong in WRONG:
                arguments = {**valid, name: wrong}
                if fault := _outcome_now(lambda call=call, given=arguments: call(**given)):
                    faults[f"{call.__name__}({name}={wrong!r:.20})"] = fault
    assert faults == {}


OF_SPARK: dict[str, Any] = {
    "bootstrap_servers": "127.0.0.1:1",
    "checkpoint": "/nowhere",
    "cluster": "127.0.0.1:1",
    "frame": None,
    "handle": print,
    "message": object,
    "options": spark.SparkOptions(),
    "progress": "/nowhere",
    "records": None,  # a frame needs a JVM
    "schema": None,
    "spark": None,
    "table": "parquet:/nowhere",
    "target": spark.parse_target("parquet:/nowhere"),
    "text": "parquet:/nowhere",
    "to": "parquet:/nowhere",
    "topic": "orders",
    "topics": ["orders"],
}
"""Valid values of the arguments that a function of `stilltide.spark` needs, without a JVM."""


def test_each_function_of_spark_refuses_wrong_arguments() -> None:
    """As far as no JVM is needed: before anything is asked of a session or a broker."""
    faults: dict[str, str] = {}
    for name in spark.__all__:
        call = getattr(spark, name)
        if isinstance(call, type):
            continue  # a value
        needed = [
            one.name
            for one in inspect.signature(call).parameters.values()
            if one.default is inspect.Parameter.empty
        ]
        assert set(needed) <= OF_SPARK.keys(), f"{name} needs a value of OF_SPARK"
        for argument in needed:
            for wrong in (None, True, 1.5, "", "a b", "\x00", b"bytes", [], [None], {}, object()):
                given = {it: OF_SPARK[it] for it in needed} | {argument: wrong}
                if fault := _outcome_now(lambda call=call, given=given: call(**given)):
                    faults[f"{name}({argument}={wrong!r:.20})"] = fault
    assert faults == {}
