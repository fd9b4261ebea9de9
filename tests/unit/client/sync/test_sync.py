"""`stilltide.sync`: the client library for threads, on the memory broker."""

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from stilltide import sync
from stilltide.pipeline.client import Subscription, Transaction, TransactionClient
from stilltide.pipeline.client.bounds import TransactionKeywords
from stilltide.pipeline.client.subscription_options import SubscriptionKeywords
from stilltide.pipeline.client.sync.loop_thread import LoopCalls
from stilltide.pipeline.client.sync.subscription import OpenKeywords
from stilltide.pipeline.client.sync.transactions import ClientKeywords
from stilltide.pipeline.errors import (
    ArgumentError,
    DecidedOtherwiseError,
    ForkedError,
    RefusedError,
    TransactionStateError,
    UsageError,
)
from stilltide.schemas.values import EndOffset, TopicPartition
from stilltide.testing import SyncMemoryCluster

ORDERS = TopicPartition("orders", 0)
CHILD_OK = 7
WAIT_S = 60.0


@pytest.fixture
def cluster() -> Iterator[SyncMemoryCluster]:
    """A cluster with two topics."""
    with SyncMemoryCluster({"orders": 1, "payments": 3}) as made:
        yield made


@pytest.fixture
def client(cluster: SyncMemoryCluster) -> Iterator[sync.TransactionClient]:
    """A client of the cluster."""
    with sync.TransactionClient(connector=cluster.connector) as made:
        yield made


def subscription(cluster: SyncMemoryCluster, group: str = "g", **options: Any) -> sync.Subscription:
    """A subscription to both topics, not open."""
    return sync.Subscription(
        ["orders", "payments"], group=group, connector=cluster.connector, **options
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (sync.TransactionClient, TransactionClient),
        (sync.Transaction, Transaction),
        (sync.Subscription, Subscription),
    ],
)
def test_the_names_are_those_of_the_async_library(ours: type, theirs: type):
    """Each public method of one library has its name and arguments in the other."""
    ignored = {"open", "on_loop", "close", "topic_recreated", "acknowledging", "tracing"}
    names = {
        kind: {name for name, _ in inspect.getmembers(kind) if name[0] != "_"} - ignored
        for kind in (ours, theirs)
    }
    assert names[ours] == names[theirs]
    for name in names[ours]:
        one, other = (inspect.getattr_static(kind, name) for kind in (ours, theirs))
        if not isinstance(one, property):
            assert list(inspect.signature(one).parameters) == list(
                inspect.signature(other).parameters
            )


def test_the_options_are_those_of_the_async_library():
    """No argument of a client or a subscription is missing."""
    wanted = set(inspect.signature(TransactionClient).parameters) - {"bootstrap_servers", "options"}
    assert set(ClientKeywords.__annotations__) - set(TransactionKeywords.__annotations__) == wanted
    wanted = set(inspect.signature(Subscription).parameters) - {"topics", "options"}
    assert set(OpenKeywords.__annotations__) - set(SubscriptionKeywords.__annotations__) == wanted


def test_transactions_commit_and_abort(cluster: SyncMemoryCluster, client: sync.TransactionClient):
    """Leaving the block commits, an exception aborts, and the errors are the library's own."""
    with client.transaction() as txn:
        assert txn.send("orders", b"o", key=b"k", headers=[("id", b"1")]) == ORDERS
        txn.flush()
        assert txn.delivered == {ORDERS: 1}
    assert txn.state == "committed"
    assert txn.id is not None
    assert client.outcome(txn.id) == "committed"
    with suppress(KeyError), client.transaction() as failed:
        failed.send("orders", b"hidden")
        raise KeyError
    with client.transaction() as other:
        other.send("orders", b"hidden")
        other.abort()
    assert (failed.state, other.state) == ("aborted", "aborted")
    with pytest.raises(ArgumentError, match="not bytes"), client.transaction() as txn:
        txn.send("orders", "text")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TransactionStateError, match="has ended"):
        other.commit(wait_visible=True)
    (record,) = cluster.committed("orders")
    assert (record.value, record.key, list(record.headers or ())[-1]) == (b"o", b"k", ("id", b"1"))


def test_every_thread_may_use_one_client(
    cluster: SyncMemoryCluster, client: sync.TransactionClient
):
    """Transactions of many threads run at once, and threads may send in one transaction."""

    def write(number: int) -> None:
        with client.transaction() as txn:
            txn.send("orders", b"%d" % number)

    with ThreadPoolExecutor(8) as threads, client.transaction() as shared:
        list(threads.map(write, range(40)))
        list(threads.map(lambda _: shared.send("payments", b"p"), range(40)))
    assert sorted(int(it.value or b"") for it in cluster.committed("orders")) == list(range(40))
    assert len(cluster.committed("payments")) == 40


def test_a_subscription_reads_and_commits(cluster: SyncMemoryCluster):
    """Messages come one by one, in batches, or to an end; the group goes on behind its commit."""
    for number in range(6):
        cluster.append("orders", b"%d" % number)
    with subscription(cluster) as messages:
        found = iter(messages)
        assert [next(found).value for _ in range(2)] == [b"0", b"1"]
        assert messages.position(ORDERS) == 2
        assert messages.statistics()[ORDERS].position == 2
        assert messages.rebalance_count == 1
        assert messages.blocked == []
        messages.commit()
    with subscription(cluster) as messages:
        batch = next(messages.batches(2))
        assert [it.value for it in batch] == [b"2", b"3"]
        assert [it.value for it in messages.read_to({ORDERS: EndOffset(5)})] == [b"4"]
        messages.seek(ORDERS, 1)
        assert next(messages).value == b"1"
        assert messages.seek_to_time(0, [ORDERS]) == {ORDERS: 0}
        assert next(messages).value == b"0"


def test_messages_are_acknowledged_in_transactions(
    cluster: SyncMemoryCluster, client: sync.TransactionClient
):
    """Client and subscription share an event loop, so one transaction covers both."""
    for value in (b"a", b"b", b"c", b"d"):
        cluster.append("orders", value)
    with subscription(cluster, acknowledgements=True) as messages:
        first, second, third, fourth = (next(messages) for _ in range(4))
        with client.transaction() as txn:
            txn.acknowledge(messages, first)
            txn.send("payments", first.value)
        messages.acknowledge(second)
        with client.transaction() as txn:
            txn.acknowledge_cumulative(messages, third)
        messages.negative_acknowledge(fourth, "not today")
        messages.commit()
    with subscription(cluster, acknowledgements=True) as messages:
        found = {next(messages).value for _ in range(2)}
    assert found == {b"d", b"a"}, "the copy of the first, and the one that failed"


def test_closing_ends_the_loops_of_other_threads(cluster: SyncMemoryCluster):
    """A service stops its readers by `close`; a loop that waits ends, and so does its iterator."""
    cluster.append("orders", b"o")
    seen, first = list[bytes | None](), threading.Event()

    def read(messages: sync.Subscription) -> None:
        for message in messages:
            seen.append(message.value)
            first.set()

    with subscription(cluster) as messages, ThreadPoolExecutor() as threads:
        reading = threads.submit(read, messages)
        assert first.wait(WAIT_S)
        messages.close()
        reading.result(WAIT_S)
    assert seen == [b"o"]
    assert list(messages) == []


def test_an_interrupted_wait_loses_no_message(cluster: SyncMemoryCluster):
    """What was taken for a thread that was interrupted comes to the next call, not to a commit."""
    for value in (b"a", b"b"):
        cluster.append("orders", value)
    with subscription(cluster) as messages:
        taking = messages._taking
        assert messages._calls is not None
        taken = messages._calls.run(taking._one([]))
        messages._calls.later(taking._put_back, [taken])  # as if the thread had been interrupted
        messages.commit()
        assert next(messages).value == b"a"
        messages._calls.later(taking._put_back, [taken])
        assert [next(messages).value for _ in range(2)] == [b"a", b"b"]


@pytest.mark.parametrize("way", ["batches", "read_to", "messages"])
@pytest.mark.parametrize("taken", ["batch", "message"])
def test_what_an_interrupted_thread_took_comes_by_each_way(
    cluster: SyncMemoryCluster, way: str, taken: str
):
    """Once, and first: an acknowledgement of all before a later message would pass it."""
    for value in (b"a", b"b", b"c"):
        cluster.append("orders", value)
    with subscription(cluster) as orders:
        taking, calls = orders._taking, orders._calls
        assert calls is not None
        item = next(orders.batches(2)) if taken == "batch" else calls.run(taking._one([]))
        calls.later(taking._put_back, [item])  # as if the thread had been interrupted
        batches = orders.batches(5)
        if way == "batches":
            values = [value for _ in range(2) for value in next(batches).values]
        elif way == "read_to":
            messages = orders.read_to({ORDERS: EndOffset(3)})
            values = [message.value for message in messages]
        else:
            values = [next(orders).value for _ in range(3)]
    assert values == [b"a", b"b", b"c"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT is an interrupt, which it is not where a shell has started the tests in background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_wait(cluster: SyncMemoryCluster):
    """A thread that waits for messages can be interrupted, and the subscription works on."""
    with subscription(cluster) as messages:

        def wait() -> None:
            # Within the block: on a busy machine the signal may come before the wait.
            assert messages._calls is not None
            messages._calls.later(os.kill, os.getpid(), signal.SIGINT)
            next(messages)

        with pytest.raises(KeyboardInterrupt):
            wait()
        cluster.append("orders", b"o")
        assert next(messages).value == b"o"


def test_what_is_not_open_says_how_to_open_it(cluster: SyncMemoryCluster):
    """A client or a subscription that is not open is a mistake of the program."""
    client = sync.TransactionClient(connector=cluster.connector)
    with pytest.raises(TypeError, match="the client is not open"):
        client.transaction()
    with pytest.raises(TypeError, match="the subscription is not open"):
        next(subscription(cluster))
    client.close()
    with client, pytest.raises(UsageError, match="the client is open"):
        client.open()


def test_l2_a_token_ends_a_transaction(client: sync.TransactionClient):
    """L2: `prepare` and `resume` have the names and arguments of the awaited ones."""
    with client.transaction() as txn:
        txn.send("orders", b"o")
        token = txn.prepare(decider="orders-db")
    assert txn.id is not None
    assert (txn.state, client.outcome(txn.id)) == ("prepared", "prepared")
    resumed = client.resume(token)
    assert resumed.id == txn.id
    resumed.commit(wait_visible=True)
    with pytest.raises(DecidedOtherwiseError):
        client.resume(token).abort()


def test_a_refused_request_raises_in_the_thread(client: sync.TransactionClient):
    """Errors of the coordinator reach the thread that asked."""
    with client.transaction() as txn:
        txn.send("orders", b"o")
    assert txn.id is not None
    with pytest.raises(RefusedError, match="no coordinator 9"):
        client.outcome(txn.id._replace(coordinator=9))


def test_a_call_on_the_own_event_loop_is_refused(client: sync.TransactionClient):
    """A callback of the loop that waits for the loop would wait for ever."""

    def called() -> None:
        client.transaction()

    with pytest.raises(UsageError, match="used on its own event loop"):
        LoopCalls("test").call(called)


def test_a_forked_process_opens_its_own(cluster: SyncMemoryCluster, client: sync.TransactionClient):
    """A client of the parent is refused in the child, which gets an event loop of its own."""
    before = client.transaction()
    if (child := os.fork()) == 0:
        code = 1
        try:
            with suppress(ForkedError), before:
                pass
            with pytest.raises(ForkedError, match="fork"):
                before.send("orders", b"o")
            code = LoopCalls("test").run(asyncio.to_thread(lambda: CHILD_OK))
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == CHILD_OK
    with before:
        before.send("orders", b"parent")
    assert [it.value for it in cluster.committed("orders")] == [b"parent"]
