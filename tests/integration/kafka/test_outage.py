"""The Kafka connector while its broker dies and comes back."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

import pytest

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.readers import NewRecord, Record
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.looks import between_looks

WAIT_S = 180


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker of this module's own, to be killed."""
    with LocalCluster("doomed", tmp_path_factory.mktemp("doomed"), fast_start=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(doomed: LocalCluster) -> Iterator[LocalCluster]:
    """It, running and awake whatever the test before did."""
    doomed.start()
    yield doomed
    if doomed.is_running:
        doomed.resume()


async def _topic(connector: KafkaConnector, name: str) -> TopicPartition:
    admin, created = connector.admin(), False
    async with asyncio.timeout(WAIT_S):
        while not created:
            with contextlib.suppress(RetriableError):  # a broker that has just been awakened
                await admin.ensure_topics([TopicSpec(name, 1)])
                created = True
    await admin.close()
    return TopicPartition(name, 0)


async def test_every_append_has_an_outcome_and_none_is_lost_or_reordered(
    cluster: LocalCluster, topic_name: str
):
    """A broker killed in mid-stream: each append is reported once, good ones lie at their offset.

    Records may land twice only if reported as failed; among the good ones the order is kept.
    """
    connector = KafkaConnector(KafkaConfig(cluster.bootstrap, delivery_timeout_s=60))
    data = await _topic(connector, topic_name)
    writer = connector.writer("w")
    reported: dict[int, tuple[ConnectorError | None, int]] = {}

    async def stream() -> None:
        for number in range(3000):
            writer.append(
                data,
                b"%d" % number,
                lambda error, offset, it=number: reported.update({it: (error, offset)}),
            )
            if number == 1000:
                assert await writer.flush(WAIT_S)
                await asyncio.to_thread(cluster.kill)

    await stream()
    assert len(reported) < 3000
    await asyncio.to_thread(cluster.start)
    assert await writer.flush(WAIT_S)
    assert sorted(reported) == list(range(3000))
    good = {number: offset for number, (error, offset) in reported.items() if error is None}
    assert set(range(1001)) <= set(good)

    reader = connector.reader("r")
    await reader.assign({data: Offset(0)})
    landed: dict[int, bytes | None] = {}
    async with asyncio.timeout(WAIT_S):
        while not (landed and max(landed) >= max(good.values())):
            for item in await reader.read():
                if isinstance(item, Record):
                    landed[item.offset] = item.value
    values = list(landed.values())
    for number, offset in good.items():
        # -1: the broker knew the record from the attempt before the crash.
        assert offset == -1 or landed[offset] == b"%d" % number
        assert values.count(b"%d" % number) == 1
    in_log = [int(value or b"") for value in values if int(value or b"") in good]
    assert in_log == sorted(in_log)
    await reader.close()
    await writer.close()


async def test_an_append_fails_in_bounded_time_and_the_writer_recovers(
    cluster: LocalCluster, topic_name: str
):
    """While the broker is down an append ends in `RetriableError` with the address."""
    # Longer than a new broker takes to give out its first producer id.
    connector = KafkaConnector(KafkaConfig(cluster.bootstrap, delivery_timeout_s=5))
    data = await _topic(connector, topic_name)
    writer = connector.writer("w")
    outcomes: asyncio.Queue[ConnectorError | None] = asyncio.Queue()
    writer.append(data, b"before", lambda error, _: outcomes.put_nowait(error))
    async with asyncio.timeout(WAIT_S):
        assert await outcomes.get() is None
        await asyncio.to_thread(cluster.kill)
    writer.append(data, b"during", lambda error, _: outcomes.put_nowait(error))
    async with asyncio.timeout(240):
        error = await outcomes.get()
    assert isinstance(error, RetriableError)
    assert cluster.bootstrap in str(error)
    await asyncio.to_thread(cluster.start)
    async with asyncio.timeout(WAIT_S):
        while error is not None:
            writer.append(data, b"after", lambda error, _: outcomes.put_nowait(error))
            error = await outcomes.get()
    await writer.close()


async def test_end_offsets_are_known_again_when_the_leader_has_a_new_epoch(cluster: LocalCluster):
    """An admin that was asked about another topic during the outage still held the old epoch."""
    connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
    idle, busy = await _topic(connector, "idle"), await _topic(connector, "busy")
    admin = connector.admin()
    assert await admin.end_offsets([idle, busy]) == {idle: 0, busy: 0}
    await asyncio.to_thread(cluster.kill)
    asking = asyncio.create_task(admin.end_offsets([busy]))
    await asyncio.to_thread(cluster.start)
    with contextlib.suppress(RetriableError):
        await asking
    assert await admin.end_offsets([idle]) == {idle: 0}
    await admin.close()


async def test_a_reader_says_that_the_broker_is_away_and_goes_on_afterwards(
    cluster: LocalCluster, topic_name: str
):
    """`read` raises `RetriableError` during the outage, and then no record is lost or repeated."""
    connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
    data = await _topic(connector, topic_name)
    writer, reader = connector.writer("w"), connector.reader("r")
    await reader.assign({data: Offset(0)})
    writer.append(data, b"0", lambda _, __: None)
    assert await writer.flush(WAIT_S)
    values: list[bytes | None] = []
    outages: list[str] = []

    async def read() -> None:
        try:
            items = await reader.read()
        except RetriableError as error:
            outages.append(str(error))
        else:
            values.extend(item.value for item in items if isinstance(item, Record))

    async with asyncio.timeout(WAIT_S):
        while not values:
            await read()
        await asyncio.to_thread(cluster.kill)
        while not outages:  # librdkafka tells of the same error once in 30 s
            await read()
        await asyncio.to_thread(cluster.start)
        writer.append(data, b"1", lambda _, __: None)
        while len(values) < 2:
            await read()
    assert values == [b"0", b"1"]
    assert all(cluster.bootstrap in text for text in outages)
    await writer.close()
    await reader.close()


async def test_a_batch_reader_goes_on_with_the_next_leader_epoch(
    cluster: LocalCluster, topic_name: str
):
    """While the broker is away it says so, also one that never met it; then both read again."""
    connector = KafkaConnector(KafkaConfig(cluster.bootstrap, request_timeout_s=1))
    data = await _topic(KafkaConnector(KafkaConfig(cluster.bootstrap)), topic_name)
    writer = connector.writer("w")
    writer.append(data, b"v", lambda *_: None)
    assert await writer.flush(WAIT_S)
    await writer.close()
    reader, late = connector.batch_reader("r"), connector.batch_reader("l")
    assert len((await reader.fetch(data, Offset(0))).batches) == 1
    await asyncio.to_thread(cluster.kill)
    for one in (reader, late):
        with pytest.raises(RetriableError, match=cluster.bootstrap):
            await one.fetch(data, Offset(0))
    await asyncio.to_thread(cluster.start)
    for one in (reader, late):
        async with asyncio.timeout(WAIT_S):
            found = None
            while found is None:
                with contextlib.suppress(RetriableError):
                    found = await one.fetch(data, Offset(0))
        assert len(found.batches) == 1
        await one.close()


async def test_a_frozen_broker_is_noticed(cluster: LocalCluster, topic_name: str):
    """A broker that keeps its connections open and answers nothing is away too."""
    config = KafkaConfig(cluster.bootstrap, request_timeout_s=3, delivery_timeout_s=6)
    connector = KafkaConnector(config)
    data = await _topic(connector, topic_name)
    writer, admin = connector.writer("w"), connector.admin()
    outcomes: asyncio.Queue[ConnectorError | None] = asyncio.Queue()
    writer.append(data, b"before", lambda error, _: outcomes.put_nowait(error))
    async with asyncio.timeout(WAIT_S):
        assert await outcomes.get() is None
        assert await admin.end_offsets([data]) == {data: 1}
    cluster.pause()
    writer.append(data, b"during", lambda error, _: outcomes.put_nowait(error))
    async with asyncio.timeout(240):
        with pytest.raises(RetriableError, match=cluster.bootstrap):
            await admin.end_offsets([data])
        assert isinstance(await outcomes.get(), RetriableError)
    cluster.resume()
    await writer.close()
    await admin.close()


async def test_a_set_is_whole_or_absent_after_an_outage(cluster: LocalCluster, topic_name: str):
    """A broker killed between the sets of a stream: `fence` decides what of the last one is there.

    The writer goes on under the same id, and every set that was reported as written is there.
    """
    config = KafkaConfig(cluster.bootstrap, request_timeout_s=2, delivery_timeout_s=3)
    connector = KafkaConnector(config)
    data = await _topic(connector, topic_name)
    writer = connector.transactional_writer("sets")

    def numbered(number: int) -> list[NewRecord]:
        return [NewRecord(data, b"%d" % index, b"%d" % number) for index in range(100)]

    await writer.fence()
    await writer.write(numbered(0))
    await asyncio.to_thread(cluster.kill)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(RetriableError, match=cluster.bootstrap):
            await writer.write(numbered(1))
        with pytest.raises(RetriableError, match=cluster.bootstrap):
            await writer.fence()
        await asyncio.to_thread(cluster.start)
        fenced = False
        while not fenced:
            with contextlib.suppress(RetriableError):
                await writer.fence()
                fenced = True
        await writer.write(numbered(2))
    await writer.close()
    reader = connector.reader("r")
    await reader.assign({data: Offset(0)})
    counts: Counter[bytes | None] = Counter()
    async with asyncio.timeout(WAIT_S):
        while counts[b"2"] < 100:
            counts.update(it.value for it in await reader.read() if isinstance(it, Record))
    assert counts[b"0"] == 100
    assert counts[b"1"] in (0, 100)
    await reader.close()


async def test_a_member_commits_again_after_an_outage(cluster: LocalCluster, topic_name: str):
    """A commit during the outage is `RetriableError` in bounded time; later ones succeed."""
    config = KafkaConfig(cluster.bootstrap, request_timeout_s=2, session_timeout_s=6)
    connector = KafkaConnector(config)
    data = await _topic(connector, topic_name)
    member = connector.group_reader("m", topic_name)
    held = asyncio.Event()
    await member.subscribe(
        [topic_name], assigned=lambda _: held.set(), revoked=lambda _: held.clear()
    )
    async with asyncio.timeout(WAIT_S):
        await held.wait()
        await member.commit({data: Offset(0)})
    await asyncio.to_thread(cluster.kill)
    async with asyncio.timeout(240):
        with pytest.raises(RetriableError, match=cluster.bootstrap):
            await member.commit({data: Offset(0)})
    await asyncio.to_thread(cluster.start)
    committed = False
    async with asyncio.timeout(WAIT_S):
        while not committed:
            await held.wait()
            try:
                await member.commit({data: Offset(0)})
                committed = True
            except ConnectorError:
                # Still starting, or a rebalance has just taken the partition back.
                await between_looks()
    await member.close()
