"""The settings of a process: read once, by the command, then passed on as arguments.

*Source*: docs/protocols A (thresholds and bounds of the buffered log), C2 (the highest time-out);
docs/internals/style.md (each setting is declared once, with bound and reason).

*Invariants*: an unknown name, also of an environment variable or in a file, is refused, never
ignored; a secret is never shown.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.pipeline.config.bounds import BOUNDS, KIB, MIB, MINUTE_MS, PORT_MAX, Bound
from stilltide.pipeline.config.clusters import ClusterAddress, parse_clusters, unknown_cluster
from stilltide.pipeline.config.sources import (
    CONFIG_VARIABLE,
    ENV_PREFIX,
    FILE_SUFFIX,
    Layer,
    read_layers,
)
from stilltide.pipeline.core.coordinator.admission import ClientLimits
from stilltide.pipeline.core.replicas import AUTO, Automatic, WantedReplicas
from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.topics import PREFIX, is_topic_name

_OTHER_VARIABLES = frozenset({"STILLTIDE_CACHE_DIR", CONFIG_VARIABLE})
"""Variables with the prefix STILLTIDE_ that are no settings."""

_DEFAULT = "default"
_OPTION = "option"


class Settings(BaseSettings):
    """Every setting of a worker or client; `load_settings` makes an instance.

    Attributes:
        cluster: name of the process's own cluster, such as `a`.
        bootstrap_servers: addresses `host:port` of the own cluster's brokers, separated by commas.
        clusters: all linked clusters, by name; see `parse_clusters`.
        replicate_from: names of clusters that workers copy topics from, separated by spaces.
        replicate_topics: names or patterns (`orders-*`) of topics to copy, separated by spaces.
        sync: how positions of groups are carried over (I12): `exact`, or `snapshot` as in Pulsar,
            where a fail-over reads up to all records between two position snapshots again.
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
        index_topics: topics whose aborted native transactions workers index (F3), separated by
            commas; workers wait for topics that do not exist yet.
        txn_timeout_ms_max: longest time-out that a transaction may ask for (C2).
        client_transactions_max: most open transactions of one client at a coordinator (C16).
        transaction_partitions_max: most partitions, and most subscriptions, of a transaction.
        client_partitions_max: most registered partitions and subscriptions in the open transactions
            of one client at a coordinator.
        client_requests_max: most requests of one client that a coordinator has not logged yet.
        coordinator_state_mib_max: most memory of the state of all coordinators of a worker, by
            estimate; beyond, no transaction is opened and no partition registered.
        own_prefix: beginning of the names of the workers' group and of all transactional ids (C15);
            begins with `stilltide.`, and is the same for all workers and links of a cluster.
        session_timeout_s: time after which a silent worker loses its partitions.
        broker_away_s_max: time without its cluster after which a worker ends.
        request_timeout_s: time after which a request to a broker has failed.
        security_protocol, sasl_mechanism, sasl_username, sasl_password, ssl_ca_location,
            ssl_certificate_location, ssl_key_location, ssl_key_password,
            ssl_endpoint_identification_algorithm: librdkafka's options of these names, with dots,
            for every Kafka client.
        web_host: address that a worker's /metrics, /livez and /readyz are bound to.
        web_port: port of these pages; 0 takes a free one, which the worker prints when it serves. 0
            is not "off": the site is on loopback and costs nothing without requests.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    cluster: str = "a"
    bootstrap_servers: str = "127.0.0.1:9092"
    clusters: Annotated[Mapping[str, ClusterAddress], NoDecode] = {}
    replicate_from: str = ""
    replicate_topics: str = "*"
    sync: Literal["exact", "snapshot"] = "exact"
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
    index_topics: str = ""
    txn_timeout_ms_max: int = 15 * MINUTE_MS
    client_transactions_max: int = 10_000
    transaction_partitions_max: int = 1000
    client_partitions_max: int = 20_000
    client_requests_max: int = 10_000
    coordinator_state_mib_max: int = 256
    own_prefix: str = PREFIX
    session_timeout_s: float = 10.0
    broker_away_s_max: float = 60.0
    request_timeout_s: float = 10.0
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_ca_location: str | None = None
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    ssl_key_password: SecretStr | None = None
    ssl_endpoint_identification_algorithm: Literal["https", "none"] | None = None
    web_host: str = "127.0.0.1"
    web_port: int = 6066

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
            found = self.clusters[name]
            return found if found.options else found.model_copy(update=shared)
        if name == self.cluster and "bootstrap_servers" in self.model_fields_set:
            return ClusterAddress(bootstrap_servers=self.bootstrap_servers, **shared)
        raise unknown_cluster(name, self.clusters)

    def check_own_name(self) -> None:
        """Passes unless `clusters` has `bootstrap_servers` under another name than `cluster`.

        Raises:
            ConfigError: one cluster would have two names.
        """
        for name, one in self.clusters.items():
            if name != self.cluster and one.bootstrap_servers == self.bootstrap_servers:
                raise ConfigError(
                    f"{self.bootstrap_servers} is cluster {name}, and cluster {self.cluster} here",
                    detail="other clusters would get records under a wrong cluster name",
                    hint=f"set STILLTIDE_CLUSTER or --cluster to {name}, or correct the address",
                )

    def _check_addresses(self) -> None:
        named: dict[str, str] = {}
        for name, one in self.clusters.items():
            other = named.setdefault(one.bootstrap_servers, name)
            if other != name:
                raise ConfigError(
                    f"clusters {other} and {name} have the same address",
                    detail=one.bootstrap_servers,
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
        values = {name: getattr(self, name) for name in SECURITY}
        return {
            name.replace("_", "."): (
                value.get_secret_value() if isinstance(value, SecretStr) else value
            )
            for name, value in values.items()
            if value is not None
        }

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
        """The config of the own cluster for the Kafka connector."""
        return KafkaConfig(
            bootstrap_servers=self.bootstrap_servers,
            extra=self.kafka_options,
            request_timeout_s=self.request_timeout_s,
            own_prefix=self.own_prefix,
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, bound in BOUNDS.items():
            if (value := getattr(self, name)) != AUTO:
                _check_bound(name, value, bound)
        _check_replicas(self.replicas)
        for name in self.replicate_from.split():
            self._check_source(name)
        for server in self.bootstrap_servers.split(","):
            _check_server("bootstrap_servers", server.strip())
        for one in self.clusters.values():
            for server in one.bootstrap_servers.split(","):
                _check_server("clusters", server.strip())
        self._check_addresses()
        _check_security(self)
        _check_prefix(self.own_prefix)
        for topic in self.indexed_topics:
            _check_topic(topic)
        return self

    @property
    def indexed_topics(self) -> list[str]:
        """The names in `index_topics`, each once, ascending."""
        return sorted({name.strip() for name in self.index_topics.split(",")} - {""})


SECURITY = tuple(
    name for name in Settings.model_fields if name.startswith(("security_", "sasl_", "ssl_"))
)
"""The settings that are librdkafka's options, whose names have dots."""


class _SettingError(ConfigError):
    """A fault of the setting `name`; `load_settings` adds the origin of its value."""

    def __init__(self, name: str, primary: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(primary, detail=detail, hint=hint)
        self.name = name


class Loaded(NamedTuple):
    """The settings in force, and the origin of each: option, a variable, a file or default."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings(**given: Any) -> Settings:
    """The settings in force: the arguments, else the environment (STILLTIDE_*), else the file that
    STILLTIDE_CONFIG names, else the defaults.

    An argument of None counts as not given, like an option of a command that was left out.

    Raises:
        ConfigError: a name is unknown (suggests the nearest), a value is not of the setting's type
            or out of its bounds (names bound and reason), or a file cannot be read; names the
            origin.
    """  # noqa: D205 - the order is the promise
    return load_with_origins(**given).settings


def load_with_origins(**given: Any) -> Loaded:
    """As `load_settings`, with the origin of every setting."""
    given = {name: value for name, value in given.items() if value is not None}
    names = list(Settings.model_fields)
    _check_variables(names)
    layers = [*read_layers(Settings), Layer(given, dict.fromkeys(given, _OPTION))]
    values: dict[str, Any] = {}
    origins = dict.fromkeys(names, _DEFAULT)
    for layer in layers:
        for name in layer.values:
            if name not in origins:
                raise _unknown(f"{name} ({layer.origins[name]})", name, names)
        values |= layer.values
        origins |= layer.origins
    try:
        return Loaded(Settings(**values), origins)
    except _SettingError as error:
        raise ConfigError(
            f"{error.primary} ({origins[error.name]})", detail=error.detail, hint=error.hint
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        why = [one["msg"].lower() for one in error.errors() if one["loc"][0] == name]
        shown = "that" if name in _SECRETS else repr(first["input"])
        raise ConfigError(
            f"{name} cannot be {shown} ({origins[name]})",
            detail=", or ".join(why),
            hint=_where(name),
        ) from None if name in _SECRETS else error


def _check_variables(names: list[str]) -> None:
    known = [ENV_PREFIX + name.upper() for name in names]
    for variable in os.environ:
        shouted = variable.upper()
        if (
            shouted.startswith(ENV_PREFIX)
            and shouted not in known
            and variable.removesuffix(FILE_SUFFIX) not in known
            and variable not in _OTHER_VARIABLES
        ):
            raise _unknown(f"variable {variable}", shouted, known)


def _unknown(shown: str, name: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return ConfigError(f"unknown setting: {shown}", hint=f"did you mean {near[0]}?")


def _check_bound(name: str, value: float, bound: Bound) -> None:
    if bound.least <= value <= bound.most:
        return
    side, limit = ("least", bound.least) if value < bound.least else ("most", bound.most)
    raise _SettingError(
        name,
        f"{name} is {value}, but the {side} is {limit}",
        detail=bound.reason,
        hint=_where(name),
    )


def _check_replicas(wanted: WantedReplicas) -> None:
    try:
        wanted.check()
    except ConfigError as error:
        raise _SettingError(
            "min_insync_replicas", error.primary, detail=error.detail, hint=error.hint
        ) from error


def _check_server(name: str, server: str) -> None:
    host, _, port = server.rpartition(":")
    is_port = port.isdecimal() and 1 <= int(port) <= PORT_MAX
    if not host or not is_port or any(letter.isspace() for letter in server):
        raise _SettingError(
            name,
            f"{name} holds {server!r}, which is not host:port",
            hint="for example 127.0.0.1:9092; separate several by commas",
        )


def _check_topic(topic: str) -> None:
    if not is_topic_name(topic):
        raise _SettingError(
            "index_topics",
            f"index_topics holds {topic!r}, which is not a topic name",
            hint="separate topics by commas, for example orders,payments",
        )


def _check_prefix(prefix: str) -> None:
    if not prefix.startswith(PREFIX) or not is_topic_name(prefix):
        raise _SettingError(
            "own_prefix",
            f"own_prefix is {prefix!r}; it begins with {PREFIX}",
            detail="one prefixed right covers the groups and transactional ids of Stilltide",
            hint=f"lengthen the default, for example {PREFIX}team-a.",
        )


def _check_security(settings: Settings) -> None:
    protocol = settings.security_protocol or "PLAINTEXT"
    for name in SECURITY:
        prefix = name.partition("_")[0].upper()
        if prefix != "SECURITY" and getattr(settings, name) is not None and prefix not in protocol:
            raise _SettingError(
                name,
                f"{name} is set, but security_protocol is {protocol}",
                detail="the setting has no effect there: the connection would lack its protection",
                hint=f"set security_protocol to one with {prefix}, or leave {name} out",
            )
    if "SASL" in protocol:
        for name in ("sasl_mechanism", "sasl_username", "sasl_password"):
            if getattr(settings, name) is None:
                raise _SettingError(
                    name,
                    f"security_protocol is {protocol}, but {name} is not set",
                    hint=_where(name),
                )
    if (settings.ssl_certificate_location is None) != (settings.ssl_key_location is None):
        raise _SettingError(
            "ssl_certificate_location",
            "of ssl_certificate_location and ssl_key_location one is set and the other is not",
            hint="set both, or neither",
        )
    for name in ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location"):
        path = getattr(settings, name)
        if path is None:
            continue
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise _SettingError(
                name,
                f"{name} names {path}, which cannot be read",
                detail=str(error.strerror),
                hint="put the PEM file there, readable by this process's user, or name another",
            ) from error


def _where(name: str) -> str:
    return (
        f"set it with {ENV_PREFIX}{name.upper()}, in the file that {CONFIG_VARIABLE} names, "
        "or by the option of the command"
    )


_SECRETS = frozenset({"sasl_password", "ssl_key_password"})
