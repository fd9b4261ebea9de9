"""Settings of the Kafka connector, and the librdkafka options they become.

*Source*: docs/internals/kafka-clients.md. An option that a promise of `connectors.ports` rests on
is passed explicitly, even where the value equals today's default. The module does not read the
environment.

Refuses an `extra` option that would break such a promise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.contact import Contact
from stilltide.connectors.kafka.errors import Caller, principal_of
from stilltide.connectors.kafka.logs import LineLimit
from stilltide.connectors.names import check_name, check_option, check_servers
from stilltide.connectors.ports.copying import COPY_TIMEOUT_S
from stilltide.connectors.ports.readers import Fetching
from stilltide.schemas.topics import PREFIX

Options = dict[str, str | int | float | bool]

RECORD_BYTES_MAX = 6 * 1024 * 1024
"""Largest record that a writer accepts; higher than any topic's limit, so the topic decides."""

_FETCH_BYTES = 8 * 1024 * 1024
_SCAN_BYTES = 512 * 1024
_SCAN_AHEAD_KIB = 4 * 1024
_READ_AHEAD_KIB = 32 * 1024
_FETCHING: dict[Fetching, Options] = {
    Fetching.TAILING: {},
    # A reader that looks up a single record throws the rest of its fetch away: fetch little.
    Fetching.SCANNING: {
        "fetch.wait.max.ms": 1,
        "fetch.message.max.bytes": _SCAN_BYTES,
        "queued.max.messages.kbytes": _SCAN_AHEAD_KIB,
    },
    Fetching.IN_BULK: {"fetch.min.bytes": _FETCH_BYTES},
}

_TRANSACTION_TIMEOUT_MS = 60_000
"""Time after which a broker aborts a dead writer's transaction; the id's next owner is faster."""

_COPY_LINGER_MS = 5
_COPY_QUEUE_KIB = 48 * 1024
"""Limit of the copies queued for sending; `CopyWriter.copy` waits while the queue is full."""

_AGE_MS_MIN, _AGE_MS_MAX = 10, 3_600_000
"""librdkafka's bounds of the time between two requests for metadata."""

TOPIC_ABSENT_MS = 3000
"""A topic that the metadata does not show for this long is missing; until then it may be new."""


@dataclass(frozen=True)
class _Bound:
    least: float
    most: float
    reason: str


_DAY_S = 24 * 60 * 60.0
_BOUNDS = {
    "request_timeout_s": _Bound(0.1, 300, "a slow broker may answer; an absent one is noticed"),
    "delivery_timeout_s": _Bound(0.1, _DAY_S, "a writer's caller waits that long for an outcome"),
    "session_timeout_s": _Bound(1, 300, "nobody reads a dead member's partitions for that long"),
    "fetch_timeout_s": _Bound(1, 300, "a busy broker may answer; a stuck client is noticed"),
    "fetch_wait_ms": _Bound(1, 500, "partitions that a reader joins wait for the fetch under way"),
    "writer_records_max": _Bound(1, 10_000_000, "librdkafka's own limit"),
    "reader_records_max": _Bound(1, 1_000_000, "records read ahead are held in memory"),
}


@dataclass(frozen=True)
class KafkaConfig:
    """The address, options, time-outs and limits of the clients of one cluster.

    Attributes:
        bootstrap_servers: addresses `host:port` of brokers, separated by commas.
        own_prefix: beginning of the names of groups and transactional ids of Stilltide's own (C15).
        extra: further librdkafka options for every client, such as those of TLS and SASL.
        request_timeout_s: time-out of one request to a broker, and of each call of an admin.
        delivery_timeout_s: time after which an unacknowledged record gets `RetriableError`.
        session_timeout_s: time after which a silent group member loses its partitions.
        fetch_timeout_s: time without any broker's answer after which a reader makes a new client.
        fetch_wait_ms: how long a broker delays an empty answer to a fetch; `EndReached` follows it.
        writer_records_max: number of queued records at which a writer refuses an append.
        reader_records_max: number of records that a reader fetches ahead, plus one batch at most.
        lines: limits the log lines of the cluster's clients, which share it.
        contact: the first contact to the cluster, which its clients share.

    Raises:
        FatalError: a value is out of bounds, or an extra option is one that the connector sets.
        InvalidTextError: an address, an option or the prefix is none that the client can take.
    """

    bootstrap_servers: str
    extra: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    request_timeout_s: float = 10.0
    delivery_timeout_s: float = 30.0
    session_timeout_s: float = 10.0
    fetch_timeout_s: float = 15.0
    fetch_wait_ms: int = 100
    writer_records_max: int = 100_000
    reader_records_max: int = 2_000
    lines: LineLimit = field(default_factory=LineLimit, compare=False, repr=False)
    own_prefix: str = PREFIX
    contact: Contact = field(default_factory=Contact, compare=False, repr=False)

    async def reach(self) -> None:
        """Returns once a broker has listened at an address of the cluster; then never waits again.

        Raises:
            NoBrokerError: none listens, and none did before.
        """
        await self.contact.make(self.bootstrap_servers, self.request_timeout_s)

    @property
    def caller(self) -> Caller:
        """The client in errors: address and user."""
        return Caller(self.bootstrap_servers, principal_of(self.extra))

    def __post_init__(self) -> None:
        if isinstance(self.bootstrap_servers, str) and not self.bootstrap_servers.strip():
            raise FatalError(
                "no address of a Kafka broker", hint="set bootstrap servers, such as localhost:9092"
            )
        check_servers(self.bootstrap_servers)
        if not isinstance(self.extra, Mapping):
            raise FatalError(
                f"extra is a {type(self.extra).__name__}, not options by name",
                hint='for example {"security.protocol": "SSL"}',
            )
        for name, text in self.extra.items():
            check_option(name, text)
        check_name(self.own_prefix, "own_prefix")
        for name, bound in _BOUNDS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise FatalError(f"{name} is a {type(value).__name__}, not a number")
            # `not in range` would let nan through.
            if not bound.least <= value <= bound.most:
                raise FatalError(
                    f"{name} is {value}; allowed are {bound.least:g}..{bound.most:g}",
                    detail=bound.reason,
                )
        for name in sorted(_OURS & self.extra.keys()):
            raise FatalError(
                f"the Kafka option {name} cannot be changed",
                detail="the connector's promises rest on it",
                hint="take it out of the extra options",
            )


Cluster = str | KafkaConfig
"""How to reach a cluster: bootstrap servers, or a config with TLS, SASL and time-outs."""


def config_of(cluster: Cluster) -> KafkaConfig:
    """`cluster` as a config; raises as `KafkaConfig`."""
    return cluster if isinstance(cluster, KafkaConfig) else KafkaConfig(cluster)


def producer_options(config: KafkaConfig, client_id: str, linger_ms: float) -> Options:
    """Options of a writer's producer: idempotent, acknowledged by all in-sync replicas."""
    return {
        **_client_options(config, client_id),
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": linger_ms,
        "message.max.bytes": RECORD_BYTES_MAX,
        "delivery.timeout.ms": milliseconds(config.delivery_timeout_s),
        "request.timeout.ms": min(
            milliseconds(config.request_timeout_s), milliseconds(config.delivery_timeout_s)
        ),
        # The writer counts records itself.
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": 256 * 1024,
        "max.in.flight.requests.per.connection": 5,
        "compression.type": "none",
        **config.extra,
    }


def transactional_options(config: KafkaConfig, transactional_id: str) -> Options:
    """Options of a producer of small native transactions."""
    return {
        **producer_options(config, transactional_id, linger_ms=0),
        **_within_transaction(config, _TRANSACTION_TIMEOUT_MS),
        "transactional.id": transactional_id,
    }


def copy_options(config: KafkaConfig, transactional_id: str) -> Options:
    """Options of a producer of large native transactions; the writer adds the size of batches."""
    return {
        **producer_options(config, transactional_id, linger_ms=_COPY_LINGER_MS),
        **_within_transaction(config, milliseconds(COPY_TIMEOUT_S)),
        "queue.buffering.max.kbytes": _COPY_QUEUE_KIB,
        "transactional.id": transactional_id,
    }


def _within_transaction(config: KafkaConfig, timeout_ms: int) -> Options:
    """The time-outs of a transaction: the client takes no longer ones of requests and records."""
    request_ms, delivery_ms = (
        min(milliseconds(seconds), timeout_ms)
        for seconds in (config.request_timeout_s, config.delivery_timeout_s)
    )
    return {
        "socket.timeout.ms": request_ms,
        "delivery.timeout.ms": delivery_ms,
        "request.timeout.ms": min(request_ms, delivery_ms),
        "transaction.timeout.ms": timeout_ms,
    }


def reader_options(
    config: KafkaConfig,
    client_id: str,
    *,
    committed: bool,
    fetching: Fetching = Fetching.TAILING,
) -> Options:
    """Options of a consumer with assigned partitions; its group id is required but never used."""
    options = _consumer_options(config, client_id, committed=committed)
    return {**options, **_FETCHING[fetching], "group.id": own_id(config, client_id)}


def own_id(config: KafkaConfig, name: str) -> str:
    """The name of a group, or a transactional id, of Stilltide's own; without a space."""
    return config.own_prefix + "-".join(name.split())


def group_options(
    config: KafkaConfig, client_id: str, group: str, metadata_max_age_s: float
) -> Options:
    """Options of a group member: assignment is eager, so a rebalance revokes every partition."""
    check_name(group, "the consumer group")
    session_ms = milliseconds(config.session_timeout_s)
    age_ms = min(max(milliseconds(metadata_max_age_s), _AGE_MS_MIN), _AGE_MS_MAX)
    return {
        **_consumer_options(config, client_id, committed=True),
        "group.id": group,
        "group.protocol": "classic",
        "partition.assignment.strategy": "range",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": max(session_ms // 5, 1),
        "max.poll.interval.ms": max(300_000, session_ms),
        "topic.metadata.refresh.interval.ms": age_ms,
        "metadata.max.age.ms": 3 * age_ms,
    }


def admin_options(config: KafkaConfig) -> Options:
    """Options of an admin client."""
    return {**_client_options(config, "stilltide-admin"), **config.extra}


def _client_options(config: KafkaConfig, client_id: str) -> Options:
    """The options of every client; a transactional id is a client id, too."""
    check_name(client_id, "the client id")
    return {
        "bootstrap.servers": config.bootstrap_servers,
        "client.id": client_id,
        "socket.timeout.ms": milliseconds(config.request_timeout_s),
        "socket.nagle.disable": True,
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.propagation.max.ms": TOPIC_ABSENT_MS,
        "allow.auto.create.topics": False,
    }


def _consumer_options(config: KafkaConfig, client_id: str, *, committed: bool) -> Options:
    return {
        **_client_options(config, client_id),
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "check.crcs": True,
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": config.fetch_wait_ms,
        "fetch.error.backoff.ms": 100,
        # The default of one second caps a reader at about 230 k records/s.
        "fetch.queue.backoff.ms": 10,
        "fetch.message.max.bytes": _FETCH_BYTES,
        "fetch.max.bytes": 2 * _FETCH_BYTES,
        "queued.min.messages": 100_000,
        "queued.max.messages.kbytes": _READ_AHEAD_KIB,
        **config.extra,
    }


def milliseconds(seconds: float) -> int:
    """Milliseconds, rounded up: a positive time never becomes 0."""
    return math.ceil(seconds * 1000)


_OURS = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.protocol",
        "isolation.level",
        "statistics.interval.ms",
        "partition.assignment.strategy",
        "transactional.id",
    }
)
