"""The two Faust Apps of a worker: one on the cluster, one without Kafka.

*Source*: docs/internals/kafka-clients.md, Faust and aiokafka. The buffered writers are agents of
the App without Kafka, because a rebalance clears every channel of a Kafka App, memory channels
included. The App on the cluster is the membership of owners (docs/protocols B1): its assignments,
and the requests that it reads. Faust's assignment decides which worker runs an owner; the fence
keeps two owners from writing.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import Any

import faust
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    TopicAuthorizationFailedError,
)
from faust.app.base import BootStrategy
from faust.auth import OAuthCredentials
from faust.types.auth import CredentialsT
from mode import CrashingSupervisor

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.errors import Access, not_allowed, on_group, on_topic
from stilltide.connectors.kafka.oauth import TokenSource
from stilltide.connectors.kafka.security import oidc_client, tls_context
from stilltide.pipeline.agents.transport import PromptTransport
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.core.groups.position_snapshots import PositionSnapshotLimits
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.pipeline.drivers.worker.deps import WorkerOptions
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.schemas.rights import Operation
from stilltide.schemas.service.envelopes import worker_client_id
from stilltide.schemas.values import TopicPartition

MAX_POLL_INTERVAL_S = 300.0

ASSIGNMENT_METADATA_AGE_S = 5.0
"""Age of the worker group's metadata: after so long, added coordinators are assigned (C14).

A worker of the group may have joined before the coordinators were added, and the metadata of one
worker, the group's leader, decide what is assigned. A client waits for an answer for longer.
"""

FETCH_BYTES_MAX = 8 * 1024 * 1024

UNANSWERED_S = 15.0
"""Time after which a request has failed, beyond that for which a broker may keep it back.

A connection may stay open and pass nothing any more, because a firewall has forgotten it. Nothing
else than this time ends it, and until then the worker reads nothing that the broker leads. A broker
keeps a member that joins waiting until all others have joined: for the time of a rebalance.
"""


class _KafkalessBoot(BootStrategy):
    enable_kafka = False


class _KafkalessApp(faust.App):
    BootStrategy = _KafkalessBoot
    logger = logging.getLogger("faust.app")  # else Faust logs under the name of this module

    async def on_started(self) -> None:
        """Opens the channels, as the consumer of a Kafka App does; `put` blocks until then."""
        await super().on_started()
        self.flow_control.resume()


class _ClusterApp(faust.App):
    logger = logging.getLogger("faust.app")  # as above

    def _new_transport(self) -> PromptTransport:
        return PromptTransport(self.conf.broker_consumer, self)


def writer_app(settings: Settings, data_dir: Path) -> faust.App:
    """The App of the buffered writers."""
    return _KafkalessApp(
        f"{settings.own_prefix}writers-{settings.cluster}",
        autodiscover=False,
        datadir=data_dir / "writers",
        store="memory://",
        web_enabled=False,
        agent_supervisor=CrashingSupervisor,
        stream_buffer_maxsize=1024,
    )


def cluster_app(settings: Settings, data_dir: Path) -> faust.App:
    """The App that is a member of the worker group, and so gets partitions assigned."""
    servers = [f"kafka://{server.strip()}" for server in settings.bootstrap_servers.split(",")]
    session_s = settings.session_timeout_s
    rebalance_s = max(session_s, 15.0)
    return _ClusterApp(
        worker_group(settings),
        broker=servers,
        broker_credentials=_credentials(settings),
        broker_client_id=worker_client_id(version("stilltide")),
        autodiscover=False,
        datadir=data_dir / "cluster",
        store="memory://",
        web_enabled=False,
        agent_supervisor=CrashingSupervisor,
        topic_disable_leader=True,
        topic_allow_declare=False,
        table_standby_replicas=1,  # selects the assignor that keeps equal numbers together
        stream_wait_empty=False,
        stream_buffer_maxsize=1024,
        broker_commit_interval=0.5,
        broker_session_timeout=session_s,
        broker_heartbeat_interval=session_s / 10,
        broker_rebalance_timeout=rebalance_s,
        broker_request_timeout=rebalance_s + UNANSWERED_S,
        broker_max_poll_interval=MAX_POLL_INTERVAL_S,
        producer_request_timeout=30.0,
        consumer_metadata_max_age_ms=int(ASSIGNMENT_METADATA_AGE_S * 1000),
        consumer_max_fetch_size=FETCH_BYTES_MAX,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=settings.worker_instance_id,
    )


class FaustTokens(AbstractTokenProvider):
    """Tokens in the form in which aiokafka, and so Faust, asks for them: on the event loop.

    Args:
        source: the tokens.
    """

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    async def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - no type there
        """The token; does not block the loop."""
        try:
            return await self._source.fresh()
        except ConnectorError as error:
            # An error that aiokafka knows: the connection fails, and is tried again.
            raise KafkaConnectionError(str(error)) from error

    def extensions(self) -> dict[str, str]:
        """The extensions of the settings."""
        return dict(self._source.client.extensions)


def worker_group(settings: Settings) -> str:
    """The group whose members are the workers of the cluster."""
    return f"{settings.own_prefix}workers-{settings.cluster}"


def _credentials(settings: Settings) -> CredentialsT | None:
    context = tls_context(settings.kafka_options)
    if client := oidc_client(settings.kafka_options):
        return OAuthCredentials(oauth_cb=FaustTokens(TokenSource(client)), ssl_context=context)
    if settings.sasl_password is not None:
        return faust.SASLCredentials(
            username=settings.sasl_username,
            password=settings.sasl_password.get_secret_value(),
            ssl_context=context,
            mechanism=settings.sasl_mechanism,
        )
    return faust.SSLCredentials(context=context) if context else None


def worker_options(settings: Settings) -> WorkerOptions:
    """What the settings say of owners."""
    return WorkerOptions(
        cluster=settings.cluster,
        coordinators=settings.coordinators,
        partitions=settings.partitions,
        replicas=settings.replicas,
        txn_log=BatchLimits(
            records_max=settings.txn_log_batch_records_max,
            bytes_max=settings.txn_log_batch_bytes_max,
            delay_ms_max=settings.txn_log_batch_delay_ms_max,
            eager=settings.txn_log_flush_mode == "eager",
            batching=settings.txn_log_batching_enabled,
        ),
        pending_ack=BatchLimits(
            records_max=settings.pending_ack_batch_records_max,
            bytes_max=settings.pending_ack_batch_bytes_max,
            delay_ms_max=settings.pending_ack_batch_delay_ms_max,
            eager=settings.pending_ack_flush_mode == "eager",
            batching=settings.pending_ack_batching_enabled,
        ),
        client_limits=settings.client_limits,
        outcome_history=settings.outcome_history,
        snapshots=SnapshotLimits(
            settings.snapshot_changes_max,
            settings.snapshot_interval_ms,
            settings.snapshot_part_bytes_max,
            settings.marker_retention_ms,
        ),
        allow_compacted=settings.allow_compacted.split(),
        indexed_topics=settings.indexed_topics,
        clusters=sorted(settings.clusters),
        sync=SyncMode(settings.sync),
        position_snapshots=PositionSnapshotLimits(
            interval_ms=settings.replication_snapshot_interval_ms,
            timeout_ms=settings.replication_snapshot_timeout_ms,
            snapshots_max=settings.replication_snapshots_max,
        ),
    )


def named(error: BaseException, config: KafkaConfig, group: str) -> BaseException:
    """The error itself, unless Kafka has refused something, or cannot be reached.

    Args:
        error: what has ended the App on the cluster.
        config: the cluster.
        group: the group of the workers.
    """
    asked: Access | None = None
    if isinstance(error, GroupAuthorizationFailedError):
        asked = on_group(Operation.READ, group)
    elif isinstance(error, TopicAuthorizationFailedError):
        asked = on_topic(Operation.READ, _topic(error))
    made: ConnectorError
    if asked is not None:
        made = not_allowed(config.caller, f"cannot read at {config.caller}", asked, repr(error))
    elif isinstance(error, KafkaError):
        made = RetriableError(
            f"the worker cannot go on at {config.caller}",
            detail=repr(error),
            hint="check that its brokers run and are reachable, and start the worker again",
        )
    else:
        return error
    made.__cause__ = error
    return made


def _topic(error: TopicAuthorizationFailedError) -> str:
    """The first topic that the error names."""
    refused = error.args[0] if error.args else ""
    names = (
        sorted(map(str, refused))
        if isinstance(refused, set | frozenset | list | tuple)
        else [refused]
    )
    return str(names[0]) if names else ""


def follow(app: faust.App, runtime: Runtime[Any, Any]) -> None:
    """Has owners follow the App's assignments, and take the requests that the App reads.

    Owners that nobody asks follow the assignment of a topic that another agent reads.
    """
    placement = runtime.placement

    async def assigned(_app: Any, partitions: Any, *_: Any, **__: Any) -> None:
        await runtime.assign(it.partition for it in partitions if it.topic == placement.topic)

    async def revoked(_app: Any, _partitions: Any, *_: Any, **__: Any) -> None:
        runtime.revoke()

    app.on_partitions_assigned.connect(assigned, weak=False)
    app.on_partitions_revoked.connect(revoked, weak=False)
    if placement.is_asked:
        names = [it for it in (placement.topic, placement.operator_topic) if it is not None]
        source = app.topic(*names, key_type=bytes, value_type=bytes, value_serializer="raw")
        app.agent(source, name=placement.name, concurrency=1)(_receiving(runtime))


def _receiving(runtime: Runtime[Any, Any]) -> Callable[[Any], Coroutine[Any, Any, None]]:
    async def receive(stream: Any) -> None:
        # Without `noack`, Faust acknowledges an event whose agent fails, and a restart skips it.
        async for event in stream.noack().events():
            message = event.message
            data = TopicPartition(message.topic, message.partition)
            runtime.received(data, message.offset, event.value)
            await stream.ack(event)

    return receive


Submitted = tuple[OwnedLog, WriteEntry]


class BufferedWriter:
    """Takes entries of the logs that this worker owns, and writes them in a Faust agent.

    The number of waiting entries is bounded by the accumulators: in eager mode one for each log and
    each `delay_ms_max`.
    """

    def __init__(self, app: faust.App) -> None:
        self._channel: Any = app.channel()  # typed for events, but accepts any object
        self._submitted: deque[Submitted] = deque()
        self._wake = asyncio.Event()
        app.agent(self._channel, name="buffered-writer")(self._write)

    def submit(self, log: OwnedLog, entry: WriteEntry) -> None:
        """Queues one entry; the entries of a log are written in the order of these calls."""
        self._submitted.append((log, entry))
        self._wake.set()

    async def run(self) -> None:
        """Feeds the channel until cancelled; a channel takes events only from a coroutine."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._submitted:
                await self._channel.put(self._submitted.popleft())

    async def _write(self, stream: Any) -> None:
        async for log, entry in stream:
            await log.write_entry(entry)
