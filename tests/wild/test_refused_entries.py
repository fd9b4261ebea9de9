"""A worker whose records the cluster refuses, and that serves nobody.

A user saw: the clock of a worker was more than an hour ahead. Kafka refused every entry of its
logs, no client was answered, `/readyz` stayed 200, `stilltide_work_hindered_total` 0, and the log
got 1 805 lines in 85 s. What clients see is in `test_refused_clients.py`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.service import hindrances as module
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.own import watched_writer
from stilltide.pipeline.drivers.service.own.watched_writer import WatchedWriter, explained_by
from stilltide.schemas.coordinator.transactions import CoordinatorStats
from stilltide.schemas.service.envelopes import Refused
from stilltide.schemas.topics import (
    MIN_INSYNC_REPLICAS,
    OPERATOR_REQUESTS,
    TXN_LOG,
    TXN_MARKERS,
    TXN_RESPONSES,
    TXN_SNAPSHOTS,
    TopicSpec,
    system_topics,
)
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_memory import MemoryWorker, until
from tests.support.refused_writes import (
    FULL_DISK,
    NO_RIGHT,
    TOO_LARGE,
    WRONG_TIME,
    hinder_at_once,
    reason_id,
    refused,
    until_passed,
)

IN_TIME_S = 60.0


CAUSES = (WRONG_TIME, FULL_DISK, NO_RIGHT)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hinders is said after a moment, not after seconds."""
    hinder_at_once(monkeypatch)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[MemoryBroker, MemoryWorker, TransactionClient]]:
    """A worker with a snapshot writer, and a client of it."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    connector = MemoryConnector(broker)
    limits = SnapshotLimits(interval_ms=20)
    async with (
        asyncio.timeout(IN_TIME_S),
        MemoryWorker(connector, partitions=1, snapshots=limits) as worker,
        TransactionClient(connector=connector, resend_s=0.1) as client,
    ):
        yield broker, worker, client


@asynccontextmanager
async def starting_refused(
    *topics: str,
) -> AsyncIterator[tuple[MemoryBroker, MemoryWorker, asyncio.Task[MemoryWorker]]]:
    """A worker that is refused what it writes there; the task ends when the worker serves.

    A worker before it has left a marker, so that snapshot writers have questions.
    """
    async with serving() as (broker, _, client):
        await transact(client)
    limits = SnapshotLimits(interval_ms=20)
    worker = MemoryWorker(MemoryConnector(broker), partitions=1, snapshots=limits)
    async with asyncio.timeout(IN_TIME_S):
        broker.refusals |= dict.fromkeys(topics, WRONG_TIME)
        started = asyncio.create_task(worker.__aenter__())
        try:
            yield broker, worker, started
        finally:
            broker.refusals.clear()
            await started
            await worker.__aexit__(None, None, None)


async def transact(client: TransactionClient) -> None:
    """A transaction that writes a record and aborts: entries, markers, answers, snapshots."""
    txn = await client.transaction().__aenter__()
    await txn.send("orders", b"o")
    await txn.flush()
    await txn.abort()


WORKS = {TXN_LOG: "entries", TXN_MARKERS: "markers", TXN_RESPONSES: "answers"}


@pytest.mark.parametrize(
    ("topic", "work", "cause"),
    [
        *((*it, cause) for it in WORKS.items() for cause in CAUSES),
        (TXN_SNAPSHOTS, "snapshots", WRONG_TIME),
    ],
    ids=reason_id,
)
async def test_what_the_cluster_refuses_is_said_until_it_is_taken(
    topic: str, work: str, cause: ConnectorError
):
    """C17: with work, place, cause and next step; counted by reason; over with the next success."""
    async with serving() as (broker, worker, client):
        await transact(client)
        assert worker.hindrances.finding().passed
        with refused(broker, cause, topic):
            asking = asyncio.create_task(transact(client))
            text = await until_passed(worker.hindrances, passed=False)
            assert f"{work} of {topic}/0: {cause.primary} ({cause.reason})" in text
            assert cause.hint in text
            assert worker.hindrances.failures[work, cause.reason]
            (told,) = worker.hindrances.reported(0)
            assert (told.name, told.hint) == (f"{work} of {topic}/0", cause.hint)
        await until_passed(worker.hindrances, passed=True)
        await asking


async def test_a_coordinator_whose_log_takes_nothing_says_why():
    """`stilltide status` asks for figures, which wait for the log: the cause comes at once."""
    async with serving() as (broker, worker, client):
        connector = MemoryConnector(broker)
        async with Coordinators(connector, request_timeout_s=IN_TIME_S) as operator:
            with refused(broker, WRONG_TIME, TXN_LOG):
                asking = asyncio.create_task(transact(client))
                await until_passed(worker.hindrances, passed=False)
                told = (await operator.stats())[0]
                assert isinstance(told, Refused)
                assert WRONG_TIME.reason in told.reason
                assert WRONG_TIME.hint in told.reason
            await asking
            assert isinstance((await operator.stats())[0], CoordinatorStats)


@pytest.mark.parametrize(("topic", "work"), [*WORKS.items(), (TXN_SNAPSHOTS, "snapshots")])
async def test_refusals_are_logged_once_a_minute(
    topic: str, work: str, monkeypatch: pytest.MonkeyPatch
):
    """However often entries, markers, snapshots and requests are tried again meanwhile."""
    monkeypatch.setattr(watched_writer, "PROBE_S", 0.05)
    async with serving() as (broker, worker, client):
        with capture_logs() as said, refused(broker, WRONG_TIME, topic):
            asking = asyncio.create_task(transact(client))
            await until(lambda: worker.hindrances.failures[work, WRONG_TIME.reason] >= 3)
        await asking
    loud = [it for it in said if it["log_level"] in ("warning", "error")]
    lines = {it["event"]: it for it in loud}
    assert len(lines) == len(loud)
    assert lines.keys() - {"step_failed"} == {"work_hindered"}
    assert lines["work_hindered"]["hint"] == WRONG_TIME.hint


async def until_told(operator: Coordinators) -> None:
    """Waits until the coordinator tells its figures."""
    while not isinstance((await operator.stats())[0], CoordinatorStats):
        pass


async def test_a_coordinator_that_has_tried_no_entry_says_why():
    """Nobody has used it since its log refuses entries: the question itself is the first try."""
    async with serving() as (broker, _, client):
        await transact(client)
        async with Coordinators(MemoryConnector(broker), request_timeout_s=IN_TIME_S) as operator:
            with refused(broker, WRONG_TIME, TXN_LOG):
                told = (await operator.stats())[0]
            assert isinstance(told, Refused)
            assert WRONG_TIME.reason in told.reason
            assert WRONG_TIME.hint in told.reason
            await until_told(operator)


async def test_a_coordinator_that_cannot_recover_says_why():
    """`stilltide status` says what keeps the fence from the log, not that nobody answers."""
    async with (
        starting_refused(TXN_LOG) as (broker, worker, served),
        Coordinators(MemoryConnector(broker), request_timeout_s=IN_TIME_S) as operator,
    ):
        await until_passed(worker.hindrances, passed=False)
        told = (await operator.stats())[0]
        assert isinstance(told, Refused)
        assert f"entries of {TXN_LOG}/0" in told.reason
        assert WRONG_TIME.reason in told.reason
        assert WRONG_TIME.hint in told.reason
        broker.refusals.clear()
        await served
        await until_told(operator)


async def test_a_worker_is_ready_soon_after_a_refused_start():
    """Questions of its snapshot writers were refused, and then reach the coordinator without Kafka.

    Each cause has one line in the log, however many owners it befalls.
    """
    with capture_logs() as said:
        async with starting_refused(TXN_LOG, OPERATOR_REQUESTS) as (broker, worker, served):
            await until(lambda: worker.hindrances.failures["requests", WRONG_TIME.reason] > 1)
            await until(lambda: "requests of" in worker.hindrances.finding().text)
            broker.refusals.clear()
            await served
            async with asyncio.timeout(module.FORGOTTEN_S / 3):
                await until_passed(worker.hindrances, passed=True)
    loud = [it for it in said if it["log_level"] in ("warning", "error")]
    matters = {(it["event"], it.get("work")) for it in loud}
    least = {("requests_not_delivered", None), ("work_hindered", "requests")}
    assert matters - {("work_hindered", "entries")} == least
    assert len(loud) == len(matters)


async def test_answers_are_ready_again_without_being_asked_for(monkeypatch: pytest.MonkeyPatch):
    """Nobody waits for an answer any more: the worker finds out itself that they are taken."""
    monkeypatch.setattr(watched_writer, "PROBE_S", 0.05)
    async with serving() as (broker, worker, client):
        with refused(broker, WRONG_TIME, TXN_RESPONSES):
            asking = asyncio.create_task(transact(client))
            await until_passed(worker.hindrances, passed=False)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            tried = worker.hindrances.failures["answers", WRONG_TIME.reason]
            await until(
                lambda: worker.hindrances.failures["answers", WRONG_TIME.reason] > tried + 5
            )
            assert not worker.hindrances.finding().passed
        async with asyncio.timeout(module.FORGOTTEN_S / 3):
            await until_passed(worker.hindrances, passed=True)
        await transact(client)  # no client takes the empty records for answers


@pytest.mark.parametrize("topic", WORKS)
async def test_one_refused_record_hinders_nobody(topic: str, monkeypatch: pytest.MonkeyPatch):
    """A stranger may have a record written that is refused; the next records are taken."""
    monkeypatch.setattr(module, "HINDERED_AFTER_S", 0.0)
    monkeypatch.setattr(watched_writer, "PROBE_S", 0.05)
    async with serving() as (broker, worker, client):
        await transact(client)
        failures, work = worker.hindrances.failures, (WORKS[topic], TOO_LARGE.reason)
        with refused(broker, TOO_LARGE, topic):
            asking = asyncio.create_task(transact(client))
            await until(lambda: bool(failures[work]))
        assert failures[work] == 1
        assert worker.hindrances.finding().passed
        await asking
        assert worker.hindrances.finding().passed


async def test_an_owner_that_is_refused_its_fence_serves_soon_after():
    """B8: it does not rest for minutes, and `/readyz` says meanwhile what is wrong."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    connector = MemoryConnector(broker)
    worker = MemoryWorker(connector, partitions=1)
    async with asyncio.timeout(IN_TIME_S):
        broker.refusals[TXN_LOG] = WRONG_TIME
        starting = asyncio.create_task(worker.__aenter__())
        text = await until_passed(worker.hindrances, passed=False)
        assert f"entries of {TXN_LOG}/0" in text
        del broker.refusals[TXN_LOG]
        await starting
        async with TransactionClient(connector=connector) as client:
            await transact(client)
        assert worker.hindrances.finding().passed
        await worker.__aexit__(None, None, None)


async def test_silence_is_explained_by_the_replicas_in_sync():
    """A producer waits for them without a word; what else is silent is said to be silent."""
    async with serving() as (broker, worker, client):
        await transact(client)
        connector = MemoryConnector(broker)
        explain = explained_by(connector.topic_admin(), connector.admin())
        watching = asyncio.create_task(worker.hindrances.run(explain))
        for needed, reason in enumerate(("NO_REPORT", "NOT_ENOUGH_REPLICAS"), 1):
            broker.topics[TXN_LOG].alter({MIN_INSYNC_REPLICAS: str(needed)})
            broker.hold(TXN_LOG)
            asking = asyncio.create_task(transact(client))
            text = await until_passed(worker.hindrances, passed=False)
            await until(lambda: worker.hindrances.failures["entries", reason])  # noqa: B023 - called before the next
            assert reason in worker.hindrances.finding().text
            assert "stilltide topics check" in text
            broker.release()
            await asking
            await until_passed(worker.hindrances, passed=True)
        watching.cancel()


async def test_a_cluster_that_is_away_is_the_matter_of_its_watch():
    """B9: one line for an absence, by the watch alone."""
    away = Hindrances(lambda: True)
    with capture_logs() as said:
        away.failed("entries", FULL_DISK)
        assert away.finding().passed
    assert said == []


async def test_a_worker_with_a_wrong_clock_answers(bootstrap: str, topic_name: str):
    """Answers have the broker's time, so `stilltide status` can show what hinders the worker."""
    connector, hindrances = KafkaConnector(KafkaConfig(bootstrap)), Hindrances()
    specs = system_topics(coordinators=1, partitions=1)
    configs = next(it.created_configs for it in specs if it.name == TXN_RESPONSES)
    admin = connector.admin()
    past = {**configs, "message.timestamp.before.max.ms": "0"}
    await admin.ensure_topics([TopicSpec(topic_name, 1, past)])
    writer = WatchedWriter(connector.writer("worker"), hindrances)
    async with asyncio.timeout(IN_TIME_S):
        for _ in range(5):
            writer.append(TopicPartition(topic_name, 0), b"answer", lambda *_: None)
            assert await writer.flush(IN_TIME_S)
        await writer.close()
    assert not hindrances.failures
    await admin.close()


BROKERS = {
    "message.timestamp.before.max.ms": ("0", "INVALID_TIMESTAMP", "clock"),
    "max.message.bytes": ("1", "MSG_SIZE_TOO_LARGE", "max.message.bytes"),
    "cleanup.policy": ("compact", "INVALID_RECORD", "policy"),
}


@pytest.mark.parametrize("config", BROKERS)
async def test_a_broker_that_refuses_records_is_understood(
    bootstrap: str,
    topic_name: str,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """The reason is Kafka's own name of the cause, and the hint names the next step."""
    value, reason, step = BROKERS[config]
    monkeypatch.setattr(module, "HINDERED_AFTER_S", 0.0)  # a record may be in time by chance
    connector, hindrances = KafkaConnector(KafkaConfig(bootstrap)), Hindrances()
    topics, admin = connector.topic_admin(), connector.admin()
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    writer = WatchedWriter(connector.writer("worker"), hindrances)

    def write() -> asyncio.Future[object]:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        data = TopicPartition(topic_name, 0)
        writer.append(data, b"entry", lambda *report: done.set_result(report))
        return done

    async with asyncio.timeout(IN_TIME_S):
        await write()
        await topics.alter_configs({topic_name: {config: value}})
        while reason not in (text := hindrances.finding().text):
            await write()
        assert f"{topic_name}/0" in text
        assert step in text
        assert hindrances.failures["requests", reason]
        await topics.alter_configs({topic_name: {config: None}})
        while not hindrances.finding().passed:
            await write()
        await writer.close()
    await topics.close()
    await admin.close()
