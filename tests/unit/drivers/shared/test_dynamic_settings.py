"""Dynamic settings on the memory broker: the last value counts, and changes are told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.shared.dynamic_settings import (
    PARTITION,
    DynamicSettings,
    write_setting,
)
from stilltide.pipeline.errors import UnavailableError
from stilltide.schemas import settings
from stilltide.schemas.settings import (
    PENDING_ACK_BATCHING_ENABLED,
    TXN_LOG_BATCHING_ENABLED,
    SettingValue,
)
from stilltide.schemas.topics import system_topics
from tests.support.coordinator.worker_memory import until

pytestmark = pytest.mark.topics(*system_topics(coordinators=1, partitions=1))

Follow = Callable[[], Awaitable[asyncio.Task[None]]]


@pytest.fixture
async def told() -> list[bool | None]:
    """What the log's switch was after each change."""
    return []


@pytest.fixture
async def dynamic(connector: MemoryConnector) -> AsyncIterator[DynamicSettings]:
    """Dynamic settings, not opened."""
    made = DynamicSettings(connector, patience_s=0.05)
    yield made
    await made.close()


@pytest.fixture
async def follow(dynamic: DynamicSettings, told: list[bool | None]) -> AsyncIterator[Follow]:
    """Reads the settings, and follows them from then on."""
    tasks: list[asyncio.Task[None]] = []

    async def run() -> None:
        async for _ in dynamic.changes():
            told.append(dynamic.flag(TXN_LOG_BATCHING_ENABLED))  # noqa: PERF401 - as they come

    async def begin() -> asyncio.Task[None]:
        await dynamic.open()
        tasks.append(asyncio.create_task(run()))
        return tasks[-1]

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def put(connector: MemoryConnector, *values: bool | None) -> None:
    """Sets the log's switch to one value after the other."""
    for value in values:
        await write_setting(connector, TXN_LOG_BATCHING_ENABLED, value, at_ms=1)


async def test_the_last_value_counts(
    connector: MemoryConnector, dynamic: DynamicSettings, told: list[bool | None]
):
    """What is read at the start is in force when `open` returns, each name for itself."""
    await put(connector, True, False)
    await write_setting(connector, PENDING_ACK_BATCHING_ENABLED, True, at_ms=1)
    await dynamic.open()
    assert dynamic.flag(TXN_LOG_BATCHING_ENABLED) is False
    assert dynamic.flag(PENDING_ACK_BATCHING_ENABLED) is True
    assert told == []


async def test_what_was_never_set_is_unset(connector: MemoryConnector, dynamic: DynamicSettings):
    """Without a value, or with it taken back, the static setting is in force."""
    await put(connector, True, None)
    await dynamic.open()
    assert dynamic.flag(TXN_LOG_BATCHING_ENABLED) is None
    assert dynamic.flag(PENDING_ACK_BATCHING_ENABLED) is None


async def test_changes_are_told_as_they_come(
    connector: MemoryConnector, follow: Follow, told: list[bool | None]
):
    """Whoever runs by a setting hears of each change, and of a reset."""
    await follow()
    for number, value in enumerate((True, False, None), 1):
        await put(connector, value)
        await until(lambda number=number: len(told) == number)
    assert told == [True, False, None]


async def test_a_setting_of_a_newer_program_is_passed_over(
    broker: MemoryBroker, connector: MemoryConnector, dynamic: DynamicSettings
):
    """An unknown name does not keep a worker from starting while others are newer."""
    broker.append(PARTITION, *settings.encode("of.tomorrow", 7, at_ms=1), None)
    await put(connector, False)
    await dynamic.open()
    assert dynamic.flag(TXN_LOG_BATCHING_ENABLED) is False


@pytest.mark.parametrize("value", [1, "on"])
async def test_a_value_of_another_kind_is_passed_over(
    broker: MemoryBroker,
    connector: MemoryConnector,
    dynamic: DynamicSettings,
    follow: Follow,
    value: SettingValue,
):
    """B10: a number is no switch, not even 1; the value before stays, and the place is told."""
    await put(connector, True)
    await follow()
    with capture_logs() as lines:
        broker.append(PARTITION, *settings.encode(TXN_LOG_BATCHING_ENABLED, value, at_ms=1), None)
        await until(lambda: lines)
    assert dynamic.flag(TXN_LOG_BATCHING_ENABLED) is True
    reason = f"dynamic setting {TXN_LOG_BATCHING_ENABLED} is {value!r}, which is no bool"
    assert [(line["offset"], line["why"]) for line in lines] == [(1, reason)]


async def test_an_absent_broker_is_an_error_at_the_start(
    broker: MemoryBroker, dynamic: DynamicSettings
):
    """A broker away for longer than the patience is given up."""
    broker.down()
    with pytest.raises(UnavailableError):
        await dynamic.open()


async def test_a_broker_that_goes_away_later_is_waited_for(
    broker: MemoryBroker, connector: MemoryConnector, dynamic: DynamicSettings, follow: Follow
):
    """B9: however long, not only for the patience of `open`; a later value is read."""
    await put(connector, True)
    following = await follow()
    broker.down()
    done, _ = await asyncio.wait([following], timeout=0.3)
    assert not done
    broker.up()
    await put(connector, False)
    await until(lambda: dynamic.flag(TXN_LOG_BATCHING_ENABLED) is False)


async def test_without_the_topic_nothing_is_guessed():
    """A cluster that no worker has served yet is told from one without settings."""
    connector = MemoryConnector(MemoryBroker())
    made = DynamicSettings(connector)
    with pytest.raises(FatalError, match="does not exist"):
        await made.open()
    await made.close()
    with pytest.raises(FatalError, match="does not exist"):
        await put(connector, True)
