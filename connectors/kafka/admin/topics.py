"""Replicas and configs of topics of one cluster.

*Source*: connectors.ports.connector; KIP-339 (a config is altered without a change of the others).

*Invariants*: every call ends within the request time-out, by an answer or by an error that names
the address.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.admin.client import SET_ON_TOPIC, AdminClients
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.errors import on_topic
from stilltide.connectors.names import check_config, check_topic_name
from stilltide.schemas.retry import SHOWN
from stilltide.schemas.rights import Operation
from stilltide.schemas.topics import Broker, PartitionReplicas, is_topic_name, same_config
from stilltide.schemas.values import TopicPartition

if TYPE_CHECKING:
    from stilltide.connectors.kafka.raw.line import RawClient

K = TypeVar("K")


class KafkaTopicAdmin:
    """A `TopicAdmin`. Connects at its first call."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._address = config.caller
        self._clients = AdminClients(config)
        self._timeout_s = config.request_timeout_s
        self._raw: RawClient | None = None

    async def brokers(self) -> list[Broker]:
        """The brokers that are up, ascending by id."""
        from stilltide.connectors.kafka.admin.brokers import (  # noqa: PLC0415 - as in KafkaConnector
            brokers_up,
        )

        return await brokers_up(self._config)

    async def placements(self, names: Sequence[str]) -> dict[str, tuple[PartitionReplicas, ...]]:
        """The placement of each partition; see `TopicAdmin.placements`."""
        names = [name for name in dict.fromkeys(names) if is_topic_name(name)]
        if not names:
            return {}
        asked = TopicCollection(names)
        answers = await self._clients.ask(
            lambda client: client.describe_topics(asked, request_timeout=self._timeout_s)
        )
        return {
            name: tuple(
                PartitionReplicas(_ids(partition.replicas), _ids(partition.isr))
                for partition in sorted(topic.partitions, key=lambda partition: partition.id)
            )
            for name, topic in self._clients.existing(
                answers, "cannot describe topic", Operation.DESCRIBE
            )
        }

    async def sizes(self, names: Sequence[str]) -> dict[TopicPartition, int]:
        """Bytes of the largest replica of each partition; see `TopicAdmin.sizes`."""
        from stilltide.connectors.kafka.admin.log_dirs import (  # noqa: PLC0415 - as in KafkaConnector
            partition_sizes,
            sizes_client,
        )

        counts = {
            name: len(placed) for name, placed in (await self.placements(names)).items() if placed
        }
        if not counts:
            return {}
        if self._raw is None:
            self._raw = sizes_client(self._config)
        return await partition_sizes(self._raw, counts)

    async def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Sets configs of topics; see `TopicAdmin.alter_configs`."""
        if not changes:
            return
        for topic, configs in changes.items():
            check_topic_name(topic)
            for name, value in configs.items():
                check_config(topic, name, value or "")
        deadline_s = time.monotonic() + self._timeout_s
        asked = [_resource(topic, configs) for topic, configs in changes.items()]
        answers = await self._clients.ask(
            lambda client: client.incremental_alter_configs(asked, request_timeout=self._timeout_s)
        )
        for resource, answer in answers.items():
            try:
                answer.result()
            except KafkaException as error:
                right = on_topic(Operation.ALTER_CONFIGS, resource.name)
                raise self._clients.failure(
                    error, f"cannot alter topic {resource.name}", right
                ) from error
        while not await self._show(changes):
            await self._shown_later("does not show the altered configs yet", changes, deadline_s)

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Deletes topics; see `TopicAdmin.delete_topics`."""
        if not names:
            return
        for name in names:
            check_topic_name(name)
        deadline_s = time.monotonic() + self._timeout_s
        answers = await self._clients.ask(
            lambda client: client.delete_topics(
                list(names), request_timeout=self._timeout_s, operation_timeout=self._timeout_s
            )
        )
        for name, answer in answers.items():
            try:
                answer.result()
            except KafkaException as error:
                right = on_topic(Operation.DELETE, name)
                action = f"cannot delete topic {name}"
                raise self._clients.failure(error, action, right) from error
        while shown := await self.placements(names):
            await self._shown_later("still shows deleted topics", shown, deadline_s)

    async def close(self) -> None:
        """Releases connections; safe to call twice."""
        raw, self._raw = self._raw, None
        if raw is not None:
            await raw.close()
        await self._clients.close()

    async def _shown_later(self, what: str, topics: Iterable[str], deadline_s: float) -> None:
        """Pauses until the next look; raises `RetriableError` behind the deadline."""
        if time.monotonic() > deadline_s:
            raise RetriableError(
                f"{self._address} {what}",
                detail=", ".join(sorted(topics)),
                hint="look at the broker's log; then try again",
            )
        await asyncio.sleep(SHOWN.wait_s())

    async def _show(self, changes: Mapping[str, Mapping[str, str | None]]) -> bool:
        """Whether the brokers report the new values: the controller answers before them."""
        asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in changes]
        answers = await self._clients.ask(
            lambda client: client.describe_configs(asked, request_timeout=self._timeout_s)
        )
        action = "cannot read the configs of topic"
        described = self._clients.existing(answers, action, Operation.DESCRIBE_CONFIGS)
        entries = {resource.name: configs for resource, configs in described}
        return all(
            topic in entries and _is_set(entries[topic][name], value)
            for topic, configs in changes.items()
            for name, value in configs.items()
        )


def _ids(nodes: Sequence[Any]) -> tuple[int, ...]:
    return tuple(node.id for node in nodes)


def _is_set(entry: ConfigEntry, value: str | None) -> bool:
    """Whether a topic has a value of its own, or none of its own for None."""
    if value is None:
        return entry.source != SET_ON_TOPIC
    return same_config(entry.value, value)


def _resource(topic: str, configs: Mapping[str, str | None]) -> ConfigResource:
    entries = [
        ConfigEntry(
            name,
            value,
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for name, value in configs.items()
    ]
    return ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
