"""A process that makes each admin call to a broker that does not answer as it should.

    python -m tests.support.client_library.admin_calls BOOTSTRAP TOPIC ORDER

Prints the outcome of each call as JSON. An assertion of librdkafka ends the process by a signal.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from confluent_kafka.admin import OffsetSpec

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.kafka.admin.admin import KafkaAdmin, log_bounds
from stilltide.connectors.kafka.admin.topics import KafkaTopicAdmin
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.client_library.muted_broker import GREETING, METADATA, MutedBroker

TIMEOUT_S = 1.0
ROUNDS = 8
"""How often each call is cancelled while its answer arrives."""


class Calls:
    """The admin calls on a topic of one partition, through one connector's clients."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.config = KafkaConfig(bootstrap, request_timeout_s=TIMEOUT_S)
        connector = KafkaConnector(self.config)
        self.admin: KafkaAdmin = connector.admin()
        self.topic_admin: KafkaTopicAdmin = connector.topic_admin()
        self.topic, self.data = topic, TopicPartition(topic, 0)

    async def close(self) -> None:
        """Closes the admins."""
        await self.admin.close()
        await self.topic_admin.close()


CALLS: dict[str, dict[str, Callable[[Calls], Awaitable[object]]]] = {
    "create_partitions": {"add_partitions": lambda it: it.admin.add_partitions(it.topic, 1)},
    "create_topics": {
        "ensure_topics": lambda it: it.admin.ensure_topics([TopicSpec(f"{it.topic}-new", 1)])
    },
    "delete_records": {"delete_records": lambda it: it.admin.delete_records({it.data: Offset(0)})},
    "delete_topics": {
        "delete_topics": lambda it: it.topic_admin.delete_topics([f"{it.topic}-gone"])
    },
    "describe_configs": {
        "topic_configs": lambda it: it.admin.topic_configs([it.topic]),
        "topic_overrides": lambda it: it.admin.topic_overrides([it.topic]),
    },
    "describe_topics": {
        "describe_topics": lambda it: it.admin.describe_topics([it.topic]),
        "placements": lambda it: it.topic_admin.placements([it.topic]),
    },
    "incremental_alter_configs": {
        "alter_configs": lambda it: it.topic_admin.alter_configs(
            {it.topic: {"retention.ms": "604800000"}}
        )
    },
    "list_offsets": {
        "end_offsets": lambda it: it.admin.end_offsets([it.data]),
        "start_offsets": lambda it: it.admin.start_offsets([it.data], since_ms=1),
        "log_bounds": lambda it: asyncio.to_thread(
            log_bounds, it.config, [it.data], OffsetSpec.earliest()
        ),
    },
    "list_topics": {
        "list_topics": lambda it: it.admin.list_topics(),
        "cluster_id": lambda it: it.admin.cluster_id(),
        "broker_figures": lambda it: it.admin.broker_figures(),
        "brokers": lambda it: it.topic_admin.brokers(),
    },
}
"""Each call of an admin, by the method of librdkafka's admin client on which it rests."""

_ALL = {name: call for calls in CALLS.values() for name, call in calls.items()}


async def _outcome(call: Callable[[Calls], Awaitable[object]], calls: Calls) -> str:
    """The name of the error's type, or `answered`; log_bounds leaves the client's own errors."""
    try:
        await call(calls)
    except Exception as error:  # noqa: BLE001 - reported
        return type(error).__name__
    return "answered"


async def _silent(broker: MutedBroker, topic: str) -> dict[str, str]:
    """All calls, while the broker answers no request; then the answers come, too late."""
    outcomes = dict[str, str]()
    for heard in ((GREETING, METADATA), (GREETING,)):
        calls = Calls(broker.bootstrap, topic)
        await calls.admin.describe_topics([topic])  # it is connected
        broker.heard, broker.muted = heard, True
        answers = await asyncio.gather(*(_outcome(it, calls) for it in _ALL.values()))
        kind = "metadata" if METADATA in heard else "nothing"
        outcomes |= {f"{name}, {kind}": it for name, it in zip(_ALL, answers, strict=True)}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(calls.close())
            broker.release()
    return outcomes


async def _without_brokers(broker: MutedBroker, topic: str) -> dict[str, str]:
    """Each call to a broker that lists no brokers and did so before: it missed its heartbeats."""

    async def ask(call: Callable[[Calls], Awaitable[object]]) -> str:
        async with MutedBroker(broker.bootstrap) as own:
            calls = Calls(own.bootstrap, topic)
            await calls.admin.cluster_id()
            await calls.admin.add_partitions(topic, 1)
            await calls.topic_admin.placements([topic])
            own.lists_brokers = False
            outcome = await _outcome(call, calls)
            await calls.close()
            return outcome

    answers = await asyncio.gather(*map(ask, _ALL.values()))
    return dict(zip(_ALL, answers, strict=True))


async def _cancelled(broker: MutedBroker, topic: str) -> dict[str, str]:
    """Each call is cancelled, and its client closed, while its answer arrives."""
    outcomes = dict[str, str]()
    for name, call in _ALL.items():
        for _ in range(ROUNDS):
            calls = Calls(broker.bootstrap, topic)
            broker.heard, broker.muted = (GREETING,), True
            broker.asked.clear()
            running = asyncio.ensure_future(call(calls))
            await broker.asked.wait()
            running.cancel()
            with suppress(asyncio.CancelledError, ConnectorError):
                await running
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(calls.close())
                broker.release()
        outcomes[name] = "cancelled"
    return outcomes


ORDERS = {"silent": _silent, "without brokers": _without_brokers, "cancelled": _cancelled}


async def main(bootstrap: str, topic: str, order: str) -> None:
    """Runs one order."""
    async with MutedBroker(bootstrap) as broker:
        sys.stdout.write(json.dumps(await ORDERS[order](broker, topic)) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
