"""The two Faust Apps of a worker: one on the cluster, one without Kafka.

*Source*: docs/internals/kafka-clients.md, Faust and aiokafka. The buffered writers are agents of
the App without Kafka, because a rebalance clears every channel of a Kafka App, memory channels
included.
"""

import logging
from importlib.metadata import version
from pathlib import Path

import faust
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError
from faust.app.base import BootStrategy
from faust.auth import OAuthCredentials
from faust.types.auth import CredentialsT
from mode import CrashingSupervisor

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.kafka.oauth import TokenSource
from stilltide.connectors.kafka.security import oidc_client, tls_context
from stilltide.pipeline.agents.transport import PromptTransport
from stilltide.pipeline.config.settings import Settings
from stilltide.schemas.service.client_ids import worker_client_id

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
