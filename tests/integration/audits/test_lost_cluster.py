"""A cluster that is lost while Spark reads it: one error of few lines, within two minutes."""

import time
from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.jobs.audits.plan import AuditPlan, Silent
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.pipeline.jobs.read_committed import read_committed
from stilltide.schemas.values import TxnId
from tests.support.spark.topics import TIMEOUT_S, HandWriter, create_topics

TOPIC = "orders"
RECORDS = 200_000
LINES_MAX = 6
BOUND_S = 120
"""A call of Kafka's clients, and a poll: 90 s, and what Spark does before and after."""


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker of this module's own, to be killed: plain records, and one transaction."""
    with LocalCluster("doomed", tmp_path_factory.mktemp("doomed"), fast_start=True) as cluster:
        create_topics(cluster.bootstrap, {TOPIC: 2})
        writer = HandWriter(cluster.bootstrap, TOPIC)
        writer.commit(TxnId(0, 1), 0, writer.of_txn(TxnId(0, 1), 0, 10))
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "queue.buffering.max.messages": RECORDS}
        )
        for number in range(RECORDS):
            producer.produce(TOPIC, b"%0200d" % number, partition=number % 2)
        assert producer.flush(TIMEOUT_S) == 0
        yield cluster


@pytest.fixture
def cluster(doomed: LocalCluster) -> LocalCluster:
    """It, running."""
    doomed.start()
    return doomed


class Killer(Silent):
    """Progress that does something when a step begins."""

    def __init__(self, step: str, act: Callable[[], object]) -> None:
        self._step = step
        self._act = act

    def step(self, text: str) -> None:
        """The moment."""
        if text.startswith(self._step):
            self._act()


def check(error: RetriableError, cluster: LocalCluster, began_s: float) -> None:
    """It came in time, names cluster, topic and next step, and no stack of Java."""
    assert time.monotonic() - began_s < BOUND_S
    text = str(error)
    assert len(text.splitlines()) <= LINES_MAX
    assert cluster.bootstrap in text
    assert TOPIC in text
    assert error.hint
    assert "java." not in text
    assert "while calling" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("step", ["walking", "starting", "reading", "filtering"])
def test_an_audit_ends_by_an_error_of_few_lines(cluster: LocalCluster, step: str):
    """The broker is killed by a signal before its logs are walked, planned, read, read again."""
    killer, began_s = Killer(step, cluster.kill), time.monotonic()
    with pytest.raises(RetriableError) as caught:
        run_audit(cluster.bootstrap, AuditPlan([TOPIC]), progress=killer)
    check(caught.value, cluster, began_s)


Work = Callable[[SparkSession, str], object]


def audit(_: SparkSession, bootstrap: str) -> None:
    """An audit."""
    run_audit(bootstrap, AuditPlan([TOPIC]))


def read(spark: SparkSession, bootstrap: str) -> None:
    """A call that looks through the topic, which has no snapshot, for undecided records."""
    read_committed(spark, bootstrap, [TOPIC])


@pytest.mark.slow
@pytest.mark.parametrize("work", [audit, read])
def test_tasks_that_run_end_so_too(cluster: LocalCluster, spark: SparkSession, work: Work):
    """The broker is killed by a signal while Spark's tasks read it."""
    ended = Event()

    def kill_under_tasks() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not tracker.getActiveStageIds():
            if ended.wait(0.02):
                return
        cluster.kill()

    thread, began_s = Thread(target=kill_under_tasks), time.monotonic()
    thread.start()
    try:
        with pytest.raises(RetriableError) as caught:
            work(spark, cluster.bootstrap)
    finally:
        ended.set()
        thread.join()
    check(caught.value, cluster, began_s)
