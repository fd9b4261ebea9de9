"""Batches that are waited for with a time-out.

What a user saw: a consumer asked `anext` of an iterator for its next batch with a time-out, to do
other work where none came. After the first time-out the iterator had ended: an `async for` over it
was over at once, without an error, and the service stopped as if it had been told to.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from typing import Any

import pytest

from stilltide import Subscription, UndecodableError, sync
from stilltide.testing import MemoryCluster, SyncMemoryCluster
from tests.support.traces import Traces, traced

READERS: dict[str, dict[str, Any]] = {
    "positions": {},
    "acknowledgements": {"acknowledgements": True},
    "deserializer": {"value_deserializer": json.loads},
}


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster with a worker."""
    async with MemoryCluster({"orders": 1}) as made:
        yield made


@pytest.fixture(params=["traced", "untraced"])
def traces(request: pytest.FixtureRequest) -> Iterator[None]:
    """With and without traces."""
    if request.param == "untraced":
        yield
        return
    with traced(Traces()):
        yield


def subscribed(cluster: MemoryCluster, **options: Any) -> Subscription:
    """A member of a group."""
    return Subscription("orders", group="billing", connector=cluster.connector, **options)


@pytest.mark.usefixtures("traces")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("wait_s_max", [0.0, 0.5])
async def test_batches_go_on_after_a_time_out(
    cluster: MemoryCluster, reader: str, wait_s_max: float
):
    """Each message is returned once, whether a batch is ready when the time is over or not."""
    values: list[Any] = []
    async with asyncio.timeout(120), subscribed(cluster, **READERS[reader]) as orders:
        batches = orders.batches(3, wait_s_max)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(batches)
        for number in range(2):
            cluster.append("orders", b"%d" % number)
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    values += (await anext(batches)).values
        cluster.append("orders", b"2")
        async for batch in batches:
            values += batch.values
            if len(values) == 3:
                break
        await orders.commit()
    assert [*map(int, values)] == [0, 1, 2]


async def test_batches_go_on_after_an_error(cluster: MemoryCluster):
    """The next batch begins behind the record that cannot be decoded."""
    for value in (b"1", b"one", b"2"):
        cluster.append("orders", value)
    async with subscribed(cluster, value_deserializer=json.loads) as orders:
        batches = orders.batches()
        assert (await anext(batches)).values == [1]
        with pytest.raises(UndecodableError):
            await anext(batches)
        assert (await anext(batches)).values == [2]


def test_batches_of_threads_go_on_after_an_error():
    """As above, with `stilltide.sync`."""
    with SyncMemoryCluster({"orders": 1}) as cluster:
        for value in (b"1", b"one", b"2"):
            cluster.append("orders", value)
        with sync.Subscription(
            "orders", group="g", connector=cluster.connector, value_deserializer=json.loads
        ) as orders:
            batches = orders.batches()
            assert next(batches).values == [1]
            with pytest.raises(UndecodableError):
                next(batches)
            assert next(batches).values == [2]


async def test_closed_batches_have_ended(cluster: MemoryCluster):
    """As a generator has; other batches of the subscription go on."""
    cluster.append("orders", b"1")
    async with subscribed(cluster) as orders:
        async with aclosing(orders.batches()) as batches:
            pass
        with pytest.raises(StopAsyncIteration):
            await anext(batches)
        assert (await anext(orders.batches())).values == [b"1"]
