"""Topics and offsets of one cluster.

*Source*: connectors.ports, `LogAdmin`; docs/internals/kafka-clients.md. Only `list_offsets` with an
isolation level returns the last stable offset; watermark queries never do.

*Invariants*: every call ends within the request time-out, by an answer or by an error that names
the address. `ensure_topics` never changes a topic that exists.
"""

import asyncio
import base64
import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import EarliestSpec, LatestSpec, OffsetSpec, TimestampSpec
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.cimpl import NewPartitions, NewTopic

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.kafka.admin.client import (
    NO_LEADERS,
    NO_TOPIC,
    SET_ON_TOPIC,
    Answers,
    NoLeaderError,
    SharedAdminClients,
    make_client,
)
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.errors import (
    DESCRIBE_BROKERS,
    DESCRIBE_CLUSTER,
    error_of,
    on_topic,
)
from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.admin import (
    TopicDescription,
    check_specs,
    check_topic,
    too_few_brokers,
)
from stilltide.schemas.retry import SHOWN
from stilltide.schemas.rights import Operation
from stilltide.schemas.topics import BrokerFigures, TopicSpec, is_topic_name
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

K = TypeVar("K")

_DEFAULT_REPLICAS = "default.replication.factor"

_CLUSTER_DEFAULT = -1
"""The number of replicas that means `default.replication.factor`."""


async def _await_shown(config: KafkaConfig, counts: Mapping[str, int]) -> None:
    """As `await_shown`, for those who create something."""
    from stilltide.connectors.kafka.admin.brokers import await_shown  # noqa: PLC0415 - applications have no kafka-python

    await await_shown(config, counts)


class KafkaAdmin:
    """A `LogAdmin`. Connects at its first call.

    Args:
        config: of the cluster's clients.
        clients: shared with other admins of the cluster; None: clients of its own.
    """

    def __init__(self, config: KafkaConfig, clients: SharedAdminClients | None = None) -> None:
        self._config = config
        self._address = config.caller
        self._shared = clients or SharedAdminClients(config)
        self._shared.join(self)
        self._clients, self._changes = self._shared.questions, self._shared.changes
        timeout_s = config.request_timeout_s
        # For changes: the client waits for the answer, and the broker until the change is done.
        self._timeouts = {"request_timeout": timeout_s, "operation_timeout": timeout_s}

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Creates what is missing and verifies the rest; see `LogAdmin.ensure_topics`."""
        check_specs(specs)
        if not specs:
            return
        names = [spec.name for spec in specs]
        deadline_s = time.monotonic() + self._config.request_timeout_s
        described = await self.describe_topics(names)
        missing = [spec for spec in specs if spec.name not in described]
        if missing:
            await self._create(missing)
            counts = {spec.name: spec.partition_count for spec in missing}
            await _await_shown(self._config, counts)
        while True:
            # Each request may go to another broker, and a broker shows a new topic some time after
            # the controller has created it: one answer with a topic may precede one without.
            if len(described) < len(names):
                described = await self.describe_topics(names)
            configs = await self.topic_configs(names)
            absent = [name for name in names if name not in described or name not in configs]
            if not absent:
                break
            if time.monotonic() > deadline_s:
                raise RetriableError(
                    f"new topics are not in the metadata of {self._address}",
                    detail=", ".join(absent),
                    hint="look at the broker's log; then try again",
                )
            await asyncio.sleep(SHOWN.wait_s())
        for spec in specs:
            check_topic(spec, described[spec.name].partition_count, configs[spec.name])

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """The topics that exist, by name; a missing one is not in the answer."""
        if not (names := _possible(names)):
            return {}
        topics = TopicCollection(names)
        answers = await self._clients.ask_again(
            lambda client, timeout_s: client.describe_topics(topics, request_timeout=timeout_s)
        )
        described = self._clients.existing(answers, "cannot describe", Operation.DESCRIBE)
        return {
            name: TopicDescription(
                name,
                _uuid_bytes(str(topic.topic_id)),
                len(topic.partitions),
                min((len(partition.replicas) for partition in topic.partitions), default=0),
            )
            for name, topic in described
        }

    async def topic_configs(self, names: Sequence[str]) -> dict[str, Mapping[str, str | None]]:
        """The configs of the topics that exist; see `LogAdmin.topic_configs`."""
        return {
            topic: {name: entry.value for name, entry in entries.items()}
            for topic, entries in (await self._described_configs(names)).items()
        }

    async def end_offsets(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> dict[TopicPartition, EndOffset]:
        """End offsets: high watermarks, or last stable offsets when `committed`."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        offsets = await self._offsets(partitions, LatestSpec(), level)
        return {data: EndOffset(offset) for data, offset in offsets}

    async def start_offsets(
        self, partitions: Sequence[TopicPartition], *, since_ms: int | None = None
    ) -> dict[TopicPartition, Offset]:
        """Log start offsets, or offsets of a time; see `LogAdmin.start_offsets`."""
        level = IsolationLevel.READ_UNCOMMITTED
        if since_ms is None:
            offsets = await self._offsets(partitions, EarliestSpec(), level)
            return {data: Offset(offset) for data, offset in offsets}
        # Asked first: a record that arrives in between is found, or lies at the end.
        ends = await self.end_offsets(partitions)
        offsets = await self._offsets(partitions, OffsetSpec.for_timestamp(since_ms), level)
        return {
            data: Offset(ends[data] if offset == _NONE_SINCE else offset)
            for data, offset in offsets
            if data in ends
        }

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        """Moves log starts up; see `LogAdmin.delete_records`."""
        if not before:
            return
        for data in before:
            check_topic_name(data.topic)
        assert min(before.values()) >= 0, "the client takes a negative offset for the end"
        asked = [ClientPartition(data[0], data[1], offset) for data, offset in before.items()]
        answers = await self._changes.ask(lambda it: it.delete_records(asked, **self._timeouts))
        for partition, answer in answers.items():
            data = TopicPartition(partition.topic, partition.partition)
            try:
                answer.result()
            except KafkaException as error:
                if error_of(error).code() == NO_LEADERS:
                    await self._check_absent([data], NoLeaderError(str(error)))
                    missing = f"{data} does not exist at {self._address}"
                    raise FatalError(missing, hint="create the topic") from error
                action = f"cannot delete records before {data}@{before[data]}"
                right = on_topic(Operation.DELETE, data.topic)
                raise self._changes.failure(error, action, right) from error

    async def cluster_id(self) -> str:
        """The cluster's own id, which no other cluster has."""
        return str((await self._cluster()).cluster_id)

    async def broker_figures(self, *, up_only: bool = False) -> BrokerFigures:
        """The numbers of brokers, and their default number of replicas."""
        from stilltide.connectors.kafka.admin.brokers import (  # noqa: PLC0415 - as in KafkaConnector
            registered_brokers,
        )

        nodes = (await self._cluster()).brokers
        if up_only:
            return BrokerFigures(len(nodes), 0)
        known = await registered_brokers(self._config)
        # Each attempt asks the next broker: one that has just died is still named.
        brokers = itertools.cycle(
            [ConfigResource(ConfigResource.Type.BROKER, str(node)) for node in nodes]
        )
        answers = await self._clients.ask_again(
            lambda it, timeout_s: it.describe_configs([next(brokers)], request_timeout=timeout_s)
        )
        (answer,) = answers.values()
        try:
            entries = answer.result()
        except KafkaException as error:
            if error_of(error).code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                return BrokerFigures(len(nodes), 1, known)
            action = "cannot read the configs of a broker"
            raise self._clients.failure(error, action, DESCRIBE_BROKERS) from error
        return BrokerFigures(len(nodes), int(entries[_DEFAULT_REPLICAS].value), known)

    async def list_topics(self) -> list[str]:
        """Names of all topics that are not Kafka's own."""
        try:
            listed = await self._clients.listed()
        except KafkaException as error:
            raise self._clients.failure(error, "cannot list topics") from error
        return sorted(name for name in listed.topics if not name.startswith("__"))

    async def topic_overrides(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Configs that were set on the topics themselves."""
        return {
            topic: {
                name: str(entry.value)
                for name, entry in entries.items()
                if entry.source == SET_ON_TOPIC
            }
            for topic, entries in (await self._described_configs(names)).items()
        }

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Adds partitions to a topic, up to `partition_count`; see `LogAdmin.add_partitions`."""
        check_topic_name(name)
        wanted = [NewPartitions(name, partition_count)]
        answers = await self._changes.ask(lambda it: it.create_partitions(wanted, **self._timeouts))
        try:
            answers[name].result()
        except KafkaException as error:
            # The topic has as many partitions already, or more.
            if error_of(error).code() != KafkaError.INVALID_PARTITIONS:
                asked = on_topic(Operation.ALTER, name)
                raise self._changes.failure(
                    error, f"cannot add partitions to {name}", asked
                ) from error
        await _await_shown(self._config, {name: partition_count})

    async def close(self) -> None:
        """Releases connections; safe to call twice."""
        await self._shared.leave(self)

    async def _cluster(self) -> ClusterMetadata:
        try:
            return await self._clients.listed(NO_TOPIC)
        except KafkaException as error:
            raise self._clients.failure(
                error, "cannot describe the cluster", DESCRIBE_CLUSTER
            ) from error

    async def _create(self, specs: Sequence[TopicSpec]) -> None:
        by_name = {spec.name: spec for spec in specs}
        wanted = [
            NewTopic(
                spec.name,
                spec.partition_count,
                _CLUSTER_DEFAULT if spec.replicas is None else spec.replicas.factor,
                config=spec.created_configs,
            )
            for spec in specs
        ]
        answers = await self._changes.ask(lambda it: it.create_topics(wanted, **self._timeouts))
        for name, answer in answers.items():
            try:
                answer.result()
            except KafkaException as error:
                code = error_of(error).code()
                if code == KafkaError.INVALID_REPLICATION_FACTOR:
                    await self._check_brokers(by_name[name], error)
                # Another process was quicker; its topic is verified like any other.
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    asked = on_topic(Operation.CREATE, name)
                    raise self._changes.failure(
                        error, f"cannot create topic {name}", asked
                    ) from error

    async def _check_brokers(self, spec: TopicSpec, error: KafkaException) -> None:
        """Raises when fewer brokers are up than the topic would have replicas."""
        brokers = len((await self._cluster()).brokers)
        if spec.replicas is not None and brokers < spec.replicas.factor:
            raise too_few_brokers(spec, brokers) from error

    async def _described_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigEntry]]:
        if not (names := _possible(names)):
            return {}
        asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        answers = await self._clients.ask_again(
            lambda client, timeout_s: client.describe_configs(asked, request_timeout=timeout_s)
        )
        action = "cannot read the configs of"
        described = self._clients.existing(answers, action, Operation.DESCRIBE_CONFIGS)
        return {resource.name: entries for resource, entries in described}

    async def _offsets(
        self, partitions: Sequence[TopicPartition], spec: OffsetSpec, level: IsolationLevel
    ) -> list[tuple[TopicPartition, int]]:
        """Offsets, with retries: metadata shows a new topic before its partitions' leaders.

        The client keeps leaders and their epochs for minutes, and asks with them again and again
        (librdkafka issue 4620): with an old epoch, or a leader that has died and does not answer.
        `attempts` has the client learn them again.
        """
        partitions = [data for data in partitions if is_topic_name(data.topic)]
        if not partitions:
            return []
        failure: RetriableError | None = None
        async for timeout_s in self._clients.attempts():
            try:
                return await self._offsets_once(partitions, spec, level, timeout_s)
            except RetriableError as error:
                failure = error
        assert failure is not None, "there is a first attempt"
        raise failure

    async def _offsets_once(
        self,
        partitions: Sequence[TopicPartition],
        spec: OffsetSpec,
        level: IsolationLevel,
        timeout_s: float,
    ) -> list[tuple[TopicPartition, int]]:
        answers = await self._clients.ask(
            lambda client: _ask_offsets(client, timeout_s, partitions, spec, level)
        )
        try:
            answered = self._clients.existing(answers, "cannot read offsets of", Operation.DESCRIBE)
        except NoLeaderError as error:
            await self._check_absent(partitions, error)
            return []
        is_time = isinstance(spec, TimestampSpec)
        return [
            (data, _known_offset(data, answer, self._address, is_time=is_time))
            for data, answer in answered
        ]

    async def _check_absent(
        self, partitions: Sequence[TopicPartition], error: NoLeaderError
    ) -> None:
        """Raises unless all of these partitions, which have no leader, are missing."""
        topics = await self.describe_topics(sorted({data.topic for data in partitions}))
        for data in partitions:
            if data.topic in topics and data.partition < topics[data.topic].partition_count:
                raise RetriableError(
                    f"no leader for {data} at {self._address}",
                    detail=str(error),
                    hint="check that all brokers run; then try again",
                )


_NONE_SINCE = -1
"""The broker's answer to a question about a time after the last record."""


LOG_START: OffsetSpec = EarliestSpec()
LOG_END: OffsetSpec = LatestSpec()


def log_bounds(
    config: KafkaConfig, partitions: Sequence[TopicPartition], spec: OffsetSpec
) -> dict[TopicPartition, Offset]:
    """Log starts, last stable offsets, or offsets of a time; blocks the calling thread.

    A partition without a record since that time has its last stable offset in the answer.

    Raises:
        KafkaException: the client's error; also when a partition does not exist.
        RetriableError: no answer in time, or no partition has a leader.
    """
    if not partitions:
        return {}
    timeout_s, address = config.request_timeout_s, config.bootstrap_servers
    level, is_time = IsolationLevel.READ_COMMITTED, isinstance(spec, TimestampSpec)
    with make_client(config, lambda _: None) as client:
        # For a time, ends are asked first: a record that arrives in between is not passed over.
        ends = _ask_offsets(client, timeout_s, partitions, LOG_END, level) if is_time else {}
        known = {data: _answered(data, it, address) for data, it in ends.items()}
        answers = _ask_offsets(client, timeout_s, partitions, spec, level)
        answered = {
            data: _answered(data, end, address, is_time=is_time) for data, end in answers.items()
        }
    return {
        data: Offset(known[data] if offset == _NONE_SINCE else offset)
        for data, offset in answered.items()
    }


def _ask_offsets(
    client: AdminClient,
    timeout_s: float,
    partitions: Sequence[TopicPartition],
    spec: OffsetSpec,
    level: IsolationLevel,
) -> Answers[TopicPartition]:
    asked = {ClientPartition(data[0], data[1]): spec for data in partitions}
    answers = client.list_offsets(asked, isolation_level=level, request_timeout=timeout_s)
    return {TopicPartition(it.topic, it.partition): answer for it, answer in answers.items()}


def _answered(
    data: TopicPartition, answer: Future[Any], address: object, *, is_time: bool = False
) -> int:
    """The offset that `_ask_offsets` is told.

    While no partition has a leader, the client tells the same as of partitions that do not exist;
    who asks here knows that they do.
    """
    try:
        return _known_offset(data, answer.result(), address, is_time=is_time)
    except KafkaException as error:
        if error_of(error).code() != NO_LEADERS:
            raise
        raise RetriableError(
            f"{address} names no leader of {data}",
            hint="check that the brokers run; then try again",
        ) from error


def _known_offset(
    data: TopicPartition, answer: Any, address: object, *, is_time: bool = False
) -> int:
    """The offset in an answer to `_ask_offsets`.

    When the broker does not answer in time, the client reports success and a negative offset.
    """
    if answer.offset < 0 and not (is_time and answer.offset == _NONE_SINCE):
        raise RetriableError(
            f"no answer about offsets of {data} from {address}",
            hint="check that the broker runs; then try again",
        )
    return answer.offset


def _possible(names: Sequence[str]) -> list[str]:
    """The names that topics can have, each once; a broker refuses a question with another name."""
    return [name for name in dict.fromkeys(names) if is_topic_name(name)]


def _uuid_bytes(text: str) -> bytes:
    """The 16 bytes of a topic id, which the client shows as base64 without padding."""
    return base64.b64decode(text + "==")
