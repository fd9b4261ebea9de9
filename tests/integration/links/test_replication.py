"""`stilltide replicate` between real brokers: exactly once through kills, and what it refuses."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from stilltide.connectors.ports.copying import Columns
from stilltide.schemas.replication.origins import origin_of
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.links.link_process import Clusters, LinkProcess, fenced
from tests.support.links.numbered import START_MS, numbers, produced
from tests.support.looks import between_looks
from tests.support.processes.operator import fetch
from tests.support.processes.worker_process import WorkerProcess

Link = Callable[..., LinkProcess]


@pytest.fixture
def link(clusters: Clusters, topic_name: str, tmp_path: Path) -> Link:
    """Makes links of the test's topic, from `a` to `b` unless told."""

    def made(source: str = "a", target: str = "b", *options: str) -> LinkProcess:
        log_path = tmp_path / f"{source}-{target}.log"
        topics = () if "--topics" in options else ("--topics", f"{topic_name}*")
        return LinkProcess(clusters.addresses, source, target, log_path, *topics, *options)

    return made


async def test_a_topic_is_copied_with_all_that_a_record_has(
    clusters: Clusters, link: Link, topic_name: str
):
    """H1: configs, keys, values, headers, times; new partitions and topics; an orderly end.

    Its site names both clusters.
    """
    await clusters.create("a", topic_name, 2, retention_ms="-1", max_message_bytes="2000000")
    data = TopicPartition(topic_name, 0)
    produced(clusters, "a", topic_name, 0, 30_000)
    async with link("a", "b", "--web-port", "0") as running:
        assert await running.serving() == [topic_name]
        async with asyncio.timeout(240):
            while (ready := await fetch(f"{running.web}/readyz"))[0] != 200:
                pass
        assert ready[1].startswith("[+]a answers\n[+]b answers\n[+]link copies; ")
        copies = await clusters.records("b", data, 30_000)
        assert [it.value for it in copies] == numbers(0, 30_000)
        assert [it.key for it in copies[:2]] == [b"k0", b"k1"]
        assert [next(iter(it.headers or ())) for it in copies[:1]] == [("number", b"0")]
        assert [one.offset for it in copies if (one := origin_of(it.headers))] == list(
            range(30_000)
        )
        reader = clusters.connector("b").column_reader("times")
        await reader.assign({data: copies[0].offset})
        first = next(iter(await reader.read()))
        assert isinstance(first, Columns)
        assert first.timestamps_ms[0] == START_MS
        await reader.close()

        admin = AdminClient({"bootstrap.servers": clusters.addresses["a"]})
        admin.create_partitions([NewPartitions(topic_name, 3)])[topic_name].result()
        await clusters.create("a", f"{topic_name}-later")
        await _until_there(clusters, "a", TopicPartition(topic_name, 2))
        produced(clusters, "a", TopicPartition(topic_name, 2), 0, 10)
        produced(clusters, "a", f"{topic_name}-later", 0, 10)
        for added in (TopicPartition(topic_name, 2), TopicPartition(f"{topic_name}-later", 0)):
            assert [it.value for it in await clusters.records("b", added, 10)] == numbers(0, 10)
        assert await running.stop() == 0, running.said
    admin = clusters.connector("b").admin()
    assert await admin.topic_overrides([topic_name]) == {
        topic_name: {
            "retention.ms": "-1",
            "max.message.bytes": "2000000",
            "min.insync.replicas": "1",  # the target's own, by its brokers
        }
    }
    await admin.close()


async def test_nothing_is_lost_or_copied_twice_by_a_link_that_is_killed(
    clusters: Clusters, link: Link, topic_name: str
):
    """H2, H3: again and again, at any point."""
    await clusters.create("a", topic_name)
    data = TopicPartition(topic_name, 0)
    for turn in range(3):
        produced(clusters, "a", topic_name, turn * 30_000, (turn + 1) * 30_000)
        async with link() as running:
            await running.serving()
            # Somewhere in the midst of the new ones, and of a transaction.
            await clusters.records("b", data, turn * 30_000 + turn * 3000 + 1, more=True)
            await running.kill()
    async with link() as running:
        copies = await clusters.records("b", data, 90_000)
    assert [it.value for it in copies] == numbers(0, 90_000)


async def test_of_a_frozen_link_and_the_next_one_only_one_goes_on(
    clusters: Clusters, link: Link, topic_name: str
):
    """H2: nothing is copied twice; one of them is fenced and says so.

    Which one depends on the moment: a link that was frozen during a commit does not know whether
    the commit succeeded, so it begins again, and then it is the next one.
    """
    await clusters.create("a", topic_name)
    data = TopicPartition(topic_name, 0)
    produced(clusters, "a", topic_name, 0, 50_000)
    async with link() as frozen:
        await clusters.records("b", data, 1, more=True)
        frozen.pause()
        produced(clusters, "a", topic_name, 50_000, 60_000)
        async with link() as second:
            await clusters.records("b", data, 60_000)
            frozen.resume()
            produced(clusters, "a", topic_name, 60_000, 65_000)
            await fenced(frozen, second)
            copies = await clusters.records("b", data, 65_000)
    assert [it.value for it in copies] == numbers(0, 65_000)


async def test_transactions_are_copied_when_they_have_committed(
    clusters: Clusters, link: Link, topic_name: str
):
    """H1: native ones and coordinated ones; what aborted is left out, what is open waits."""
    connector = clusters.connector("a")
    topic = await CoordinatedTopic.create(connector, topic_name, 1)
    data = topic.at(0)
    committed, aborted, open_ = TxnId(0, 10), TxnId(0, 11), TxnId(0, 12)
    end = await topic.write(0, committed, value=b"c1")
    await topic.write(0, aborted, value=b"gone")
    await topic.commit(0, committed, end)
    await topic.abort(0, aborted)
    await asyncio.to_thread(_native, clusters.addresses["a"], topic_name)
    await topic.write(0, open_, value=b"c2")
    last = await topic.write(0, None, value=b"plain")
    async with link():
        copies = await clusters.records("b", data, 2)
        assert [it.value for it in copies] == [b"c1", b"n1"]
        await topic.commit(0, open_, last)
        copies = await clusters.records("b", data, 4)
    assert [it.value for it in copies] == [b"c1", b"n1", b"c2", b"plain"]
    assert {name for it in copies for name, _ in it.headers or ()} == {"origin"}
    await topic.close()


def _native(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"native-{topic}"})
    producer.init_transactions(30)
    for value, end in (
        (b"gone", producer.abort_transaction),
        (b"n1", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(30)
        end()


async def test_both_ways_nothing_goes_round(clusters: Clusters, link: Link, topic_name: str):
    """H1: two links face to face; each side has its own records and those of the other, once."""
    data = TopicPartition(topic_name, 0)
    for name in "ab":
        await clusters.create(name, topic_name)
    produced(clusters, "a", topic_name, 0, 3000)
    produced(clusters, "b", topic_name, 10_000, 13_000)
    async with link("a", "b", "--merge"), link("b", "a", "--merge"):
        for name in "ab":
            await clusters.records(name, data, 6000)
        produced(clusters, "a", topic_name, 3000, 4000)
        produced(clusters, "b", topic_name, 13_000, 14_000)
        for name in "ab":
            values = [it.value for it in await clusters.records(name, data, 8000)]
            assert [it for it in values if len(it or b"") < 5] == numbers(0, 4000)
            assert [it for it in values if len(it or b"") == 5] == numbers(10_000, 14_000)


async def test_what_cannot_be_linked_is_refused(clusters: Clusters, link: Link, topic_name: str):
    """With an error that names both sides; nothing is copied."""
    await clusters.create("a", topic_name, 1)
    await clusters.create("b", topic_name, 2)
    produced(clusters, "a", topic_name, 0, 10)
    async with link() as other_count, link("a", "z") as unknown:
        assert await other_count.ended() == 1
        assert "1 partitions on a and 2 on b" in other_count.said
        assert await unknown.ended() == 1
        assert "unknown cluster 'z'" in unknown.said
    admin = clusters.connector("b").admin()
    ends = await admin.end_offsets([TopicPartition(topic_name, number) for number in range(2)])
    assert set(ends.values()) == {0}
    await admin.close()


async def _until_there(clusters: Clusters, name: str, data: TopicPartition) -> None:
    admin = clusters.connector(name).admin()
    async with asyncio.timeout(240):
        while True:
            if data in await admin.end_offsets([data]):
                break
            await between_looks()
    await admin.close()


async def test_a_worker_runs_the_links_that_its_settings_name(
    clusters: Clusters, topic_name: str, tmp_path: Path
):
    """To its own cluster."""
    await clusters.create("a", topic_name)
    produced(clusters, "a", topic_name, 0, 100)
    worker = WorkerProcess(
        clusters.addresses["b"],
        tmp_path / "worker.log",
        cluster="b",
        clusters=f"a={clusters.addresses['a']}",
        replicate_from="a",
        replicate_topics=f"{topic_name}*",
    )
    async with worker:
        await worker.serving()
        copies = await clusters.records("b", TopicPartition(topic_name, 0), 100)
        assert [it.value for it in copies] == numbers(0, 100)
        worker.terminate()
        assert await worker.ended() == 0, worker.said


async def test_readers_of_the_target_go_on_when_the_source_dies(
    clusters: Clusters, link: Link, topic_name: str
):
    """H2: no transaction stays open until its time-out of 10 s. The last test: `b` is restarted."""
    await clusters.create("b", topic_name)
    data = TopicPartition(topic_name, 0)
    source = clusters.brokers["b"]
    admin = clusters.connector("a").admin()
    async with link("b", "a") as running:
        await running.serving()
        producer = Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 5})
        async with asyncio.timeout(240):
            while True:
                for number in range(100):
                    producer.produce(topic_name, b"%d" % number, partition=0)
                producer.poll(0)
                ends = [await admin.end_offsets([data], committed=it) for it in (True, False)]
                if ends[0].get(data, 0) > 0 and ends[0][data] < ends[1][data]:
                    break  # copied before, and a transaction is open
        try:
            await asyncio.to_thread(source.kill)
            async with asyncio.timeout(7):
                while True:
                    committed = await admin.end_offsets([data], committed=True)
                    if committed == await admin.end_offsets([data]):
                        break
                    await between_looks()
        finally:
            producer.purge()
            await asyncio.to_thread(source.start)
    await admin.close()
