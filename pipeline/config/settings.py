"""The settings of a process, each with its bound: what they are, and what follows from them.

*Source*: docs/protocols A (thresholds and bounds of the buffered log), C2 (the highest time-out);
docs/internals/style.md (each setting is declared once, with bound and reason).

*Invariants*: a secret is never shown.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.pipeline.config.bounds import BOUNDS, KIB, MIB, MINUTE_MS
from stilltide.pipeline.config.checks import (
    OAUTH,
    check_bound,
    check_cluster,
    check_line,
    check_own_cluster,
    check_prefix,
    check_publishes,
    check_replicas,
    check_security,
    check_server,
    check_topic,
    check_web,
    parse_left_alone,
    parse_publishes,
)
from stilltide.pipeline.config.clusters import ClusterAddress, parse_clusters, unknown_cluster
from stilltide.pipeline.config.deciders import parse_deciders
from stilltide.pipeline.config.sources import ENV_PREFIX
from stilltide.pipeline.core.coordinator.admission import ClientLimits
from stilltide.pipeline.core.coordinator.outcomes import OUTCOME_HISTORY
from stilltide.pipeline.core.links.configs import LeftAlone
from stilltide.pipeline.core.replicas import AUTO, Automatic, WantedReplicas
from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.topics import PREFIX

OWN_CLUSTER = "a"
"""The default of `cluster`: the name of the cluster that `bootstrap_servers` is the address of."""


class Settings(BaseSettings):
    """Every setting of a worker or client; `load_settings` makes an instance.

    Attributes:
        cluster: name of the process's own cluster, such as `a`.
        bootstrap_servers: addresses `host:port` of the own cluster's brokers, separated by commas;
            if not set, those in `clusters`.
        clusters: all linked clusters, by name; see `parse_clusters`.
        replicate_from: names of clusters that workers copy topics from, separated by spaces.
        replicate_topics: names or patterns (`orders-*`) of topics to copy, separated by spaces.
        replicate_configs_from: name of the cluster whose topic configs all others follow (H8);
            empty: a link carries only the changes that it sees, and none between clusters that copy
            a topic to each other.
        replicate_configs_except: configs of topics that links leave alone on their target,
            separated by spaces, such as `retention.ms` or `orders-*:cleanup.policy`.
        publish: topics whose committed records workers copy to another topic (H7), such as
            `orders:orders.committed`, separated by commas; workers wait for source topics that do
            not exist yet.
        copy_keyless: what links and publishes do with a record without key if the target's topic
            compacts (H10): the partition waits, or the record is left out.
        sync: how positions of groups are carried over (I12): `exact`, or `snapshot` as in Pulsar,
            where a fail-over reads up to all records between two position snapshots again.
        replication_snapshot_interval_ms: shortest time between two attempts to make a position
            snapshot of a data partition (I1).
        replication_snapshot_timeout_ms: time after which an attempt is given up (I4).
        replication_snapshots_max: most position snapshots of a data partition that are kept (I5).
        worker_instance_id: static group membership: a restarted worker with the same id gets its
            partitions back without a rebalance.
        coordinators: number of partitions of txn-log and txn-requests.
        partitions: number of partitions of system topics that data partitions are hashed to.
        replication_factor: number of replicas of system topics and of topics that links create, set
            at creation. `auto` is the cluster's `default.replication.factor` if that is above 1,
            else 3, or the number of brokers if there are fewer.
        min_insync_replicas: `min.insync.replicas` of the same topics; `auto` is 2 from three
            replicas on, else 1.
        txn_log_batching_enabled: whether records of the transaction log share entries (A7).
        txn_log_batch_records_max: most records in an entry (A3).
        txn_log_batch_bytes_max: most bytes in an entry (A3).
        txn_log_batch_delay_ms_max: longest time that a record waits for others in timer mode (A3).
        txn_log_flush_mode: `eager` writes also as soon as no write is under way, `timer` does not
            (A3).
        pending_ack_batching_enabled, pending_ack_batch_records_max, pending_ack_batch_bytes_max,
            pending_ack_batch_delay_ms_max, pending_ack_flush_mode: the same settings for the
            pending-ack log.
        snapshot_changes_max: number of outcomes on a data partition that make a snapshot due (E7).
        snapshot_interval_ms: longest time from a first outcome until a snapshot is due (E7).
        snapshot_part_bytes_max: bytes of aborted transactions in a sealed part (E2).
        marker_retention_ms: how long the outcomes of transactions stay on txn-markers (E9); 0
            deletes a marker as soon as a snapshot has absorbed it.
        index_topics: topics whose aborted native transactions workers index (F3), separated by
            commas; workers wait for topics that do not exist yet.
        allow_compacted: names or patterns (`log-*`) of topics whose keys are never written again,
            separated by spaces: nobody is told that they compact (C18).
        txn_timeout_ms_max: longest time-out that a transaction may ask for (C2).
        client_transactions_max: most open transactions of one client at a coordinator (C16).
        transaction_partitions_max: most partitions, and most subscriptions, of a transaction.
        client_partitions_max: most registered partitions and subscriptions in the open transactions
            of one client at a coordinator.
        client_requests_max: most requests of one client that a coordinator has not logged yet.
        coordinator_state_mib_max: most memory of the state of all coordinators of a worker, by
            estimate; beyond, no transaction is opened and no partition registered.
        outcome_history: how many transactions' outcomes a coordinator remembers, a bit each (C12).
        deciders: databases whose rows decide prepared transactions (L6), such as
            `orders-db=postgresql://user:password@host/orders`, separated by spaces.
        resolve_after_ms: how long a prepared transaction is left to its client before a worker asks
            the database (L6).
        own_prefix: beginning of the names of the workers' group and of all transactional ids (C15);
            begins with `stilltide.`, and is the same for all workers and links of a cluster.
        session_timeout_s: time after which a silent worker loses its partitions.
        broker_away_s_max: time after which a worker, link or indexer that cannot reach a cluster at
            its start ends; a process that has served waits without a limit (B9).
        request_timeout_s: time after which a request to a broker has failed.
        security_protocol, sasl_mechanism, sasl_username, sasl_password, ssl_ca_location,
            ssl_certificate_location, ssl_key_location, ssl_key_password,
            ssl_endpoint_identification_algorithm, sasl_oauthbearer_client_id,
            sasl_oauthbearer_client_secret, sasl_oauthbearer_token_endpoint_url,
            sasl_oauthbearer_scope, sasl_oauthbearer_extensions, https_ca_location: librdkafka's
            options of these names, with dots, for every Kafka client.
        web_host: address that a worker's /metrics, /livez and /readyz are bound to.
        web_port: port of these pages; 0 takes a free one, which the worker prints when it serves. 0
            is not "off": the site is on loopback and costs nothing without requests.
        web_allowed_hosts: names or patterns (`worker-*`), separated by spaces, that the site may be
            asked under, in addition to IP addresses and `localhost`.
        metrics_token: bearer token that /metrics asks for.
        line_host: address on which a worker takes direct lines of clients (J); empty: none.
        line_port: port of direct lines; 0 takes a free one.
        line_advertised: host name or address that clients of direct lines connect to; empty:
            `line_host`.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    cluster: str = OWN_CLUSTER
    bootstrap_servers: str = "127.0.0.1:9092"
    clusters: Annotated[Mapping[str, ClusterAddress], NoDecode] = {}
    replicate_from: str = ""
    replicate_topics: str = "*"
    replicate_configs_from: str = ""
    replicate_configs_except: str = ""
    publish: str = ""
    copy_keyless: Literal["wait", "skip"] = "wait"
    sync: Literal["exact", "snapshot"] = "exact"
    replication_snapshot_interval_ms: int = 1000
    replication_snapshot_timeout_ms: int = 30_000
    replication_snapshots_max: int = 30
    worker_instance_id: str | None = None
    coordinators: int = 4
    partitions: int = 4
    replication_factor: int | Automatic = AUTO
    min_insync_replicas: int | Automatic = AUTO
    txn_log_batching_enabled: bool = True
    txn_log_batch_records_max: int = 512
    txn_log_batch_bytes_max: int = 4 * MIB
    txn_log_batch_delay_ms_max: int = 1
    txn_log_flush_mode: Literal["eager", "timer"] = "eager"
    pending_ack_batching_enabled: bool = True
    pending_ack_batch_records_max: int = 512
    pending_ack_batch_bytes_max: int = 4 * MIB
    pending_ack_batch_delay_ms_max: int = 1
    pending_ack_flush_mode: Literal["eager", "timer"] = "eager"
    snapshot_changes_max: int = 1000
    snapshot_interval_ms: int = 5000
    snapshot_part_bytes_max: int = 256 * KIB
    marker_retention_ms: int = 24 * 60 * MINUTE_MS
    index_topics: str = ""
    allow_compacted: str = ""
    txn_timeout_ms_max: int = 15 * MINUTE_MS
    client_transactions_max: int = 10_000
    transaction_partitions_max: int = 1000
    client_partitions_max: int = 20_000
    client_requests_max: int = 10_000
    coordinator_state_mib_max: int = 256
    outcome_history: int = OUTCOME_HISTORY
    deciders: SecretStr | None = None
    resolve_after_ms: int = 5000
    own_prefix: str = PREFIX
    session_timeout_s: float = 10.0
    broker_away_s_max: float = 60.0
    request_timeout_s: float = 10.0
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    sasl_oauthbearer_client_id: str | None = None
    sasl_oauthbearer_client_secret: SecretStr | None = None
    sasl_oauthbearer_token_endpoint_url: str | None = None
    sasl_oauthbearer_scope: str | None = None
    sasl_oauthbearer_extensions: str | None = None
    https_ca_location: str | None = None
    ssl_ca_location: str | None = None
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    ssl_key_password: SecretStr | None = None
    ssl_endpoint_identification_algorithm: Literal["https", "none"] | None = None
    web_host: str = "127.0.0.1"
    web_port: int = 6066
    web_allowed_hosts: str = ""
    metrics_token: SecretStr | None = None
    line_host: str = ""
    line_port: int = 0
    line_advertised: str = ""

    @field_validator("clusters", mode="before")
    @classmethod
    def _clusters(cls, given: Any) -> Any:
        return parse_clusters(given)

    def address_of(self, name: str) -> ClusterAddress:
        """The address of the named cluster; `bootstrap_servers` is the address of `cluster`.

        Settings of TLS and SASL apply to every cluster without options of its own.

        Raises:
            ConfigError: no cluster has this name; suggests the nearest.
        """
        shared = {"options": self.kafka_options}
        if name in self.clusters:
            address = self.clusters[name]
            return address if address.options else address.model_copy(update=shared)
        if name == self.cluster and "bootstrap_servers" in self.model_fields_set:
            return ClusterAddress(bootstrap_servers=self.bootstrap_servers, **shared)
        raise unknown_cluster(name, self.clusters)

    def check_own_name(self) -> None:
        """Passes unless `clusters` has `bootstrap_servers` under another name than `cluster`.

        Raises:
            ConfigError: one cluster would have two names.
        """
        for name, address in self.clusters.items():
            if name != self.cluster and address.bootstrap_servers == self.bootstrap_servers:
                raise ConfigError(
                    f"{self.bootstrap_servers} is cluster {name}, and cluster {self.cluster} here",
                    detail="other clusters would get records under a wrong cluster name",
                    hint=f"set STILLTIDE_CLUSTER or --cluster to {name}, or correct the address",
                )

    def _check_addresses(self) -> None:
        named: dict[str, str] = {}
        for name, address in self.clusters.items():
            other = named.setdefault(address.bootstrap_servers, name)
            if other != name:
                raise ConfigError(
                    f"clusters {other} and {name} have the same address",
                    detail=address.bootstrap_servers,
                    hint="correct one of the addresses",
                )

    def _check_source(self, name: str) -> None:
        if name == self.cluster:
            raise ConfigError(
                f"replicate_from names {name}, the worker's own cluster",
                hint="name only other clusters; `cluster` is the worker's own",
            )
        self.address_of(name)

    @classmethod
    def settings_customise_sources(  # noqa: D102 - pydantic's hook
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - as above
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # `load_settings` reads the others, to know each value's origin

    @property
    def kafka_options(self) -> dict[str, str]:
        """The settings of TLS and SASL, under librdkafka's names; secrets in clear."""
        values = self._security
        fixed = {"sasl.oauthbearer.method": "oidc"} if self.sasl_mechanism == OAUTH else {}
        return fixed | {
            name.replace("_", "."): (
                value.get_secret_value() if isinstance(value, SecretStr) else value
            )
            for name, value in values.items()
            if value is not None
        }

    @property
    def _security(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SECURITY}

    @property
    def allowed_hosts(self) -> list[str]:
        """The names and patterns in `web_allowed_hosts`."""
        return self.web_allowed_hosts.split()

    @property
    def replicas(self) -> WantedReplicas:
        """The replicas of topics that are created."""
        return WantedReplicas(self.replication_factor, self.min_insync_replicas)

    @property
    def client_limits(self) -> ClientLimits:
        """What one client may hold at a coordinator."""
        return ClientLimits(
            txn_timeout_ms_max=self.txn_timeout_ms_max,
            client_transactions_max=self.client_transactions_max,
            transaction_partitions_max=self.transaction_partitions_max,
            client_partitions_max=self.client_partitions_max,
            client_requests_max=self.client_requests_max,
            state_bytes_max=self.coordinator_state_mib_max * MIB,
        )

    @property
    def kafka(self) -> KafkaConfig:
        """The config of the own cluster for the Kafka connector.

        Without settings of TLS and SASL, options that `clusters` has for this address apply.
        """
        known = {cluster.bootstrap_servers: cluster.options for cluster in self.clusters.values()}
        return KafkaConfig(
            bootstrap_servers=self.bootstrap_servers,
            extra=self.kafka_options or known.get(self.bootstrap_servers, {}),
            request_timeout_s=self.request_timeout_s,
            own_prefix=self.own_prefix,
        )

    def kafka_of(self, name: str) -> KafkaConfig:
        """The config of the named cluster for the Kafka connector; raises as `address_of`."""
        address = self.address_of(name)
        return KafkaConfig(
            address.bootstrap_servers,
            extra=address.options,
            request_timeout_s=self.request_timeout_s,
            own_prefix=self.own_prefix,
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, bound in BOUNDS.items():
            if (value := getattr(self, name)) != AUTO:
                check_bound(name, value, bound)
        check_replicas(self.replicas)
        if self.deciders is not None:
            parse_deciders(self.deciders.get_secret_value())
        check_own_cluster(self.cluster)
        for name in self.replicate_from.split():
            self._check_source(name)
        if self.replicate_configs_from not in ("", self.cluster):
            self.address_of(self.replicate_configs_from)
        parse_left_alone(self.replicate_configs_except)
        for name, address in self.clusters.items():
            check_cluster(name, address.bootstrap_servers)
        for server in self.bootstrap_servers.split(","):
            check_server(server.strip())
        self._check_addresses()
        check_security(self._security)
        token = self.metrics_token
        check_web(self.allowed_hosts, token.get_secret_value() if token else None)
        check_line(self.line_host, self.line_advertised, self.security_protocol)
        check_prefix(self.own_prefix)
        for topic in self.indexed_topics:
            check_topic(topic)
        check_publishes(self.publishes)
        return self

    @property
    def left_alone(self) -> LeftAlone:
        """The configs in `replicate_configs_except`."""
        return parse_left_alone(self.replicate_configs_except)

    @property
    def publishes(self) -> list[PublishRoute]:
        """The publishes in `publish`, each once, ascending."""
        return parse_publishes(self.publish)

    @property
    def indexed_topics(self) -> list[str]:
        """The names in `index_topics`, each once, ascending."""
        return sorted({name.strip() for name in self.index_topics.split(",")} - {""})


SECURITY = tuple(
    name
    for name in Settings.model_fields
    if name.startswith(("security_", "sasl_", "ssl_", "https_"))
)
"""The settings that are librdkafka's options, whose names have dots."""

SECRETS = frozenset(
    name
    for name, field in Settings.model_fields.items()
    if SecretStr in (field.annotation, *get_args(field.annotation)) or name == "clusters"
)
"""The settings whose values no output and no error shows; `clusters` may hold passwords."""
