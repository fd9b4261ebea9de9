"""`stilltide publish` on a real broker: exactly once through kills, and what it refuses (H7)."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.replication.origins import PublishRoute, origin_of
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.links.link_process import Clusters, PublishProcess, fenced
from tests.support.links.numbered import numbers, produced
from tests.support.looks import between_looks
from tests.support.processes.operator import Operator, fetch

Started = Callable[..., PublishProcess]


@pytest.fixture
def clusters(kafka: LocalCluster) -> Clusters:
    """The shared broker."""
    return Clusters([kafka])


@pytest.fixture
def publish(topic_name: str) -> PublishRoute:
    """The test's topic, and the topic of its copies."""
    return PublishRoute(topic_name, f"{topic_name}.committed")


@pytest.fixture
def started(bootstrap: str, publish: PublishRoute, tmp_path: Path) -> Started:
    """Makes processes of the test's publish, or of another one."""

    def made(*options: str, other: PublishRoute = publish) -> PublishProcess:
        return PublishProcess(bootstrap, other, tmp_path / "publish.log", *options)

    return made


async def translates(operator: Operator, publish: PublishRoute) -> None:
    """The command translates there and back; neither option nor both is wrong usage."""
    words = f"offset translate {publish.source} 0 5000 --to-topic {publish.target}"
    (there,) = await operator.ask(words)
    assert (there["to_topic"], there["record"]) == (publish.target, 5000)
    at = there["translated"]
    (back,) = await operator.ask(
        f"offset translate {publish.target} 0 {at} --to-topic {publish.source}"
    )
    assert (back["translated"], back["record"]) == (5000, at)
    await operator.run(f"offset translate {publish.source} 0 5000", code=2)
    await operator.run(f"{words} --from a --to b", code=2)


async def test_a_publish_serves_and_ends_in_order(
    clusters: Clusters, started: Started, publish: PublishRoute, bootstrap: str, tmp_path: Path
):
    """H7: all that a record has; figures, a probe, offsets; SIGINT leaves no copy behind."""
    await clusters.create("a", publish.source, 2, max_message_bytes="2000000")
    data = TopicPartition(publish.target, 0)
    produced(clusters, "a", publish.source, 0, 10_000)
    async with started("--web-port", "0") as running:
        await running.serving()
        copies = await clusters.records("a", data, 10_000)
        assert [it.value for it in copies] == numbers(0, 10_000)
        assert [it.key for it in copies[:2]] == [b"k0", b"k1"]
        origins = [one for it in copies if (one := origin_of(it.headers))]
        assert [one.offset for one in origins] == list(range(10_000))
        assert {one.incarnation.cluster for one in origins} == {"a"}
        assert {name for name, _ in copies[0].headers or ()} == {"number", "origin"}
        named = f'{{partition="0",source="{publish.link}",target="a",topic="{publish.target}"}}'
        async with asyncio.timeout(240):
            while f"lag_records{named} 0.0" not in (await fetch(f"{running.web}/metrics"))[1]:
                await between_looks()
        shown = (await fetch(f"{running.web}/metrics"))[1]
        assert f"stilltide_link_copied_records_total{named} 10000.0" in shown
        ready = await fetch(f"{running.web}/readyz")
        assert ready == (200, "[+]broker answers\n[+]link copies; 0 offsets behind\n"), ready
        await translates(Operator(bootstrap, tmp_path), publish)
        running.send(signal.SIGINT)
        assert await running.ended() == 0, running.said
    admin = clusters.connector("a").admin()
    assert (await admin.topic_overrides([publish.target]))[publish.target] == {
        "max.message.bytes": "2000000",
        "min.insync.replicas": "1",
    }
    await admin.close()


async def test_nothing_is_lost_or_copied_twice_by_a_publish_that_is_killed(
    clusters: Clusters, started: Started, publish: PublishRoute
):
    """H7: again and again, at any point, while two partitions of positions take turns."""
    await clusters.create("a", publish.source, 2)
    places = [TopicPartition(publish.target, number) for number in range(2)]
    for turn in range(3):
        for place in places:
            source = TopicPartition(publish.source, place.partition)
            produced(clusters, "a", source, turn * 20_000, (turn + 1) * 20_000)
        async with started() as running:
            await running.serving()
            # Somewhere in the midst of the new ones, and of a transaction.
            seen = turn * 20_000 + turn * 2000 + 1
            await clusters.records("a", places[turn % 2], seen, more=True)
            await running.kill()
    async with started():
        for place in places:
            copies = await clusters.records("a", place, 60_000)
            assert [it.value for it in copies] == numbers(0, 60_000)


async def test_of_a_frozen_publish_and_the_next_one_only_one_goes_on(
    clusters: Clusters, started: Started, publish: PublishRoute
):
    """H7, H2: nothing is copied twice; one of them is fenced and says so."""
    await clusters.create("a", publish.source)
    data = TopicPartition(publish.target, 0)
    produced(clusters, "a", publish.source, 0, 5000)
    async with started() as frozen:
        await clusters.records("a", data, 1, more=True)
        frozen.pause()
        produced(clusters, "a", publish.source, 5000, 10_000)
        async with started() as second:
            await clusters.records("a", data, 10_000)
            frozen.resume()
            found, end = asyncio.create_task(fenced(frozen, second)), 10_000
            while not found.done():  # a publish that writes nothing does not learn it
                produced(clusters, "a", publish.source, end, end + 500)
                end += 500
                await asyncio.wait([found], timeout=1)
            await found
            copies = await clusters.records("a", data, end)
    assert [it.value for it in copies] == numbers(0, end)


async def test_transactions_are_published_when_they_have_committed(
    clusters: Clusters, started: Started, publish: PublishRoute
):
    """H7, D2: what aborted is left out; an open transaction holds back what follows."""
    topic = await CoordinatedTopic.create(clusters.connector("a"), publish.source, 1)
    committed, aborted, open_ = TxnId(0, 10), TxnId(0, 11), TxnId(0, 12)
    end = await topic.write(0, committed, value=b"c1")
    await topic.write(0, aborted, value=b"gone")
    await topic.commit(0, committed, end)
    await topic.abort(0, aborted)
    await topic.write(0, open_, value=b"c2")
    last = await topic.write(0, None, value=b"plain")
    data = TopicPartition(publish.target, 0)
    async with started():
        assert [it.value for it in await clusters.records("a", data, 1)] == [b"c1"]
        await topic.commit(0, open_, last)
        copies = await clusters.records("a", data, 3)
    assert [it.value for it in copies] == [b"c1", b"c2", b"plain"]
    assert {name for it in copies for name, _ in it.headers or ()} == {"origin"}
    await topic.close()


async def test_what_cannot_be_published_is_refused(
    clusters: Clusters, started: Started, publish: PublishRoute
):
    """With an error that names both topics; nothing is copied."""
    await clusters.create("a", publish.source, 1)
    await clusters.create("a", publish.target, 2)
    back = PublishRoute(publish.target, publish.source)
    other = PublishRoute(publish.source, f"{publish.source}.other")
    async with started() as counts, started(other=PublishRoute("absent", "there")) as absent:
        assert await counts.ended() == 1
        assert f"{publish.source} has 1 partitions and {publish.target} has 2" in counts.said
        assert await absent.ended() == 1
        assert "topic absent does not exist on a and cannot be published to there" in absent.said
    await clusters.create("a", other.target)
    produced(clusters, "a", other.target, 0, 1)
    async with started(other=other) as foreign:
        assert await foreign.ended() == 1
        assert f"{other.target} on a has records that are not copies of" in foreign.said
    third = PublishRoute(publish.source, f"{publish.source}.third")
    produced(clusters, "a", publish.source, 0, 1)
    async with started(other=third):
        await clusters.records("a", TopicPartition(third.target, 0), 1)
    back = PublishRoute(third.target, third.source)
    async with started(other=back) as circle:
        assert await circle.ended() == 1
        assert f"in a circle: {back.source} -> {third.source} -> {back.source}" in circle.said
