"""The console was ended by SIGABRT on a busy machine: a broker did not answer its admin in time.

librdkafka has an assertion (`rd_kafka_admin_response_parse`) that fails when a broker describes its
cluster without brokers, as a broker does that is starting, or that missed its heartbeats. It also
reads an answer from memory that it never had when the answer comes while its client is destroyed,
as it was after a look of the console had taken too long.
"""

import ast
import json
from pathlib import Path

import confluent_kafka.admin
import pytest

import stilltide.connectors.kafka.admin.client as client_module
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.schemas.topics import TopicSpec
from tests.support.client_library.admin_calls import CALLS
from tests.support.processes.child import Child

CONNECTOR = Path(client_module.__file__).resolve().parents[1]


@pytest.fixture
async def topic(bootstrap: str, topic_name: str) -> str:
    """A topic of one partition."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    await admin.close()
    return topic_name


async def _outcomes(log: Path, *arguments: str) -> dict[str, str]:
    """The outcome of each call in a process of its own, which an assertion may end."""
    module = "tests.support.client_library.admin_calls"
    async with Child.of_module(module, *arguments, log_path=log) as child:
        line = await child.line()
        assert await child.ended() == 0, child.said
    return json.loads(line)


async def test_a_broker_that_never_answers_ends_calls_by_an_error(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Each admin call to a broker that falls silent ends by a typed error, late answers or not."""
    outcomes = await _outcomes(tmp_path / "log", bootstrap, topic, "silent")
    silent = {name: it for name, it in outcomes.items() if name.endswith("nothing")}
    assert len(silent) == sum(map(len, CALLS.values()))
    assert set(silent.values()) <= {"RetriableError", "KafkaException"}, silent
    assert silent["log_bounds, nothing"] in {"RetriableError", "KafkaException"}


async def test_a_broker_without_brokers_ends_calls_by_an_error(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """A broker that lists no brokers, as one that is starting, ends no process and no guess."""
    outcomes = await _outcomes(tmp_path / "log", bootstrap, topic, "without brokers")
    unknown = {"cluster_id", "broker_figures", "brokers", "list_topics"}
    assert {outcomes[name] for name in unknown} == {"RetriableError"}, outcomes


async def test_a_call_that_is_cancelled_ends_its_client_in_order(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """A client that is closed while an answer is on its way does not end the process."""
    outcomes = await _outcomes(tmp_path / "log", bootstrap, topic, "cancelled")
    assert set(outcomes.values()) == {"cancelled"}


def test_every_call_through_librdkafka_is_among_the_calls() -> None:
    """The calls that these tests make are all calls that the connector makes, by their methods."""
    methods = {
        name
        for name in dir(confluent_kafka.admin.AdminClient)
        if not name.startswith("_") and name != "poll"
    }
    used = {
        node.attr
        for path in CONNECTOR.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in {"it", "client"}
    }
    assert used & methods == set(CALLS)
