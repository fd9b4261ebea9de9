"""Fixtures for tests on a real broker; without Java they fail, they never skip."""

import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from stilltide.connectors.local.cluster import LocalCluster, make_class_archive
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from tests.support.databases.mariadb import MariaDbServer, mariadb_server
from tests.support.databases.postgres import PostgresServer, postgres_server
from tests.support.links.link_process import Clusters
from tests.support.processes.local import delete_topics
from tests.support.processes.registry import SchemaRegistry
from tests.support.spark.classes import start_making, use_fast_start

# Generated examples have no deadline: a busy machine is no fault of the code. All else stays as in
# the profile that Hypothesis chooses, which makes the same examples each time in CI.
settings.register_profile(
    "patient",
    settings(),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark.cluster import SparkCluster
    from tests.support.spark.cluster_programs import Written

_ROOT = Path(__file__).parents[1]

if sys.dont_write_bytecode:
    # The caller wants no caches among the sources. Without any, each of the hundreds of processes
    # of a run would compile every module that it imports.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(_ROOT / "build" / "pycache")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Scheduling(LoadFileScheduling):
    """The tests of a file stay in one process, and so do all of Spark: a session is expensive."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "spark" if _on_spark(path) else path


@cache
def _on_spark(path: str) -> bool:
    """Whether the tests of a file use the Spark session that the tests of a process share."""
    text = (_ROOT / path).read_text()
    words = ("support.spark.session", "spark: SparkSession", 'usefixtures("spark")')
    return "/spark/" in path or any(word in text for word in words)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Makes archives of classes once, for brokers and Spark in all processes of a run."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in a shell's background, and so in all programs that tests start and interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config = session.config
    if hasattr(config, "workerinput"):
        return  # the variables are inherited
    if config.getoption("numprocesses", None):
        making = start_making()
        make_class_archive()
        if making is not None:
            making.wait()  # JVMs start without an archive, too
    use_fast_start()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Shares the files out in the order of collection: the quick ones come last."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker that all tests of a process share; a test that stops one starts its own."""
    with LocalCluster("a", tmp_path_factory.mktemp("kafka"), fast_start=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def second_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A second broker that all tests of a process share; a test that stops one starts its own."""
    with LocalCluster("w", tmp_path_factory.mktemp("kafka-w"), fast_start=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def empty_kafka(second_kafka: LocalCluster) -> LocalCluster:
    """The second broker, without topics: system topics are the whole cluster's."""
    second_kafka.start()  # a test that killed the broker may have failed before it started it again
    delete_topics(second_kafka.bootstrap)
    return second_kafka


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that all tests of a process share; each test has tables of its own."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    """A schema registry that all tests of a process share."""
    made = SchemaRegistry(tmp_path_factory.mktemp("registry"))
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    """A MariaDB server that all tests of a process share; each test has a database of its own."""
    with mariadb_server() as server:
        yield server


@pytest.fixture(scope="module")
def spark_machines(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkCluster]":
    """A Spark cluster in namespaces: a master, a worker and a place for drivers; needs root."""
    from tests.support.spark.cluster import spark_cluster  # noqa: PLC0415 - as below

    with spark_cluster(tmp_path_factory.mktemp("machines")) as machines:
        yield machines


@pytest.fixture(scope="module")
def sound_orders(
    spark_machines: "SparkCluster", tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[Written]":
    """A sound topic of a broker that the Spark cluster reaches."""
    from tests.support.spark.cluster_programs import sound_topic  # noqa: PLC0415 - as below

    with sound_topic(spark_machines, tmp_path_factory.mktemp("kafka")) as written:
        yield written


@pytest.fixture(scope="module")
def spark() -> "Iterator[SparkSession]":
    """The Spark session of the process; audits find it by themselves."""
    # Other tests do not wait for the libraries of Spark.
    from tests.support.spark.session import local_spark  # noqa: PLC0415

    with local_spark() as session:
        yield session


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> MemoryBroker:
    """A broker in memory, with the topics that the mark `topics` names."""
    broker = MemoryBroker()
    mark = request.node.get_closest_marker("topics")
    for spec in mark.args if mark else ():
        broker.create_topic(spec)
    return broker


@pytest.fixture
def connector(broker: MemoryBroker) -> MemoryConnector:
    """The connector of the broker in memory."""
    return MemoryConnector(broker)


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Address of the shared broker; TEST_BOOTSTRAP names one that runs already."""
    return os.environ.get("TEST_BOOTSTRAP") or request.getfixturevalue("kafka").bootstrap


@pytest.fixture(scope="module")
def clusters(kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """The shared broker, `a`, and another one."""
    with LocalCluster("b", tmp_path_factory.mktemp("kafka-b"), fast_start=True) as other:
        yield Clusters([kafka, other])


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test uses; the topic is the test's to create."""
    return f"test-{uuid4().hex[:12]}"
