"""The settings of a process: read once, at the rim, then handed down.

*Source*: protocols.md A (thresholds and floors of the buffered log), C2 (time-outs have a maximum);
architecture.md, Habits of the code (one validation table).

*Invariants*: an unknown name, also of an environment variable or in a file, is refused, never
ignored; a secret is shown nowhere.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.pipeline.config.clusters import ClusterAddress, parse_clusters, unknown_cluster
from stilltide.pipeline.config.sources import (
    CONFIG_VARIABLE,
    ENV_PREFIX,
    FILE_SUFFIX,
    Layer,
    read_layers,
)
from stilltide.pipeline.core.replicas import AUTO, Automatic, WantedReplicas
from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.framing import RECORDS_MAX
from stilltide.schemas.topics import is_topic_name

_OTHER_VARIABLES = frozenset({"STILLTIDE_CACHE_DIR", CONFIG_VARIABLE})
"""Variables with our prefix that are no setting."""

_DEFAULT = "default"
_OPTION = "option"

_KIB = 1024
_MIB = 1024 * _KIB
_MINUTE_MS = 60 * 1000
_PORT_MAX = 65_535
_INT16_MAX = 32_767


class Bound(NamedTuple):
    """The least and most a setting may be, and why."""

    least: float
    most: float
    reason: str


_BATCH_RECORDS = Bound(10, RECORDS_MAX, "fewer is not worth a batch, and readers refuse more")
_BATCH_BYTES = Bound(
    128 * _KIB, 4 * _MIB, "fewer is not worth a batch, and the topics admit no more"
)
_BATCH_DELAY_MS = Bound(
    1, 1000, "timers are no finer, and every caller waits for so long in timer mode"
)

BOUNDS: Mapping[str, Bound] = MappingProxyType(
    {
        "coordinators": Bound(1, 256, "each is a partition that some worker must own"),
        "partitions": Bound(1, 256, "each system topic has so many partitions"),
        "replication_factor": Bound(1, _INT16_MAX, "Kafka counts replicas in 16 bits"),
        "min_insync_replicas": Bound(1, _INT16_MAX, "Kafka counts replicas in 16 bits"),
        "txn_log_batch_records_max": _BATCH_RECORDS,
        "txn_log_batch_bytes_max": _BATCH_BYTES,
        "txn_log_batch_delay_ms_max": _BATCH_DELAY_MS,
        "pending_ack_batch_records_max": _BATCH_RECORDS,
        "pending_ack_batch_bytes_max": _BATCH_BYTES,
        "pending_ack_batch_delay_ms_max": _BATCH_DELAY_MS,
        "snapshot_changes_max": Bound(
            1, 1_000_000, "a new reader reads so many markers beyond the snapshot"
        ),
        "snapshot_interval_ms": Bound(
            100, 10 * _MINUTE_MS, "each snapshot asks every coordinator; readers may wait for one"
        ),
        "snapshot_part_bytes_max": Bound(
            _KIB, 512 * _KIB, "a snapshot's end holds as much besides, and records hold 1 MiB"
        ),
        "txn_timeout_ms_max": Bound(
            1000, 24 * 60 * _MINUTE_MS, "an open transaction holds back every reader behind it"
        ),
        "session_timeout_s": Bound(
            1, 1800, "brokers refuse a consumer group's member outside of their own bounds"
        ),
        "broker_away_s_max": Bound(
            1, 3600, "a broker restart takes seconds, and a worker cut off for good must say so"
        ),
        "request_timeout_s": Bound(1, 300, "a broker away must be noticed, a slow one borne"),
        "web_port": Bound(0, _PORT_MAX, "a TCP port, or 0 for a free one"),
    }
)
"""The validation table: whole ranges, ends included."""


class Settings(BaseSettings):
    """Every setting of a worker or client; `load_settings` makes it.

    Attributes:
        cluster: name of the cluster, such as `a`.
        bootstrap_servers: its brokers, `host:port`, several with commas.
        clusters: all clusters that are linked, by name; see `parse_clusters`.
        replicate_from: clusters that workers copy from, to their own; names with spaces between.
        replicate_topics: which topics; names or patterns such as `orders-*`, likewise.
        sync: how positions of groups are carried over (I12): `exact`, or `snapshot` as Pulsar does,
            where up to all between two snapshots is read again.
        worker_instance_id: static group membership: a restarted worker with the same id gets its
            partitions back without a rebalance.
        coordinators: partitions of txn-log and txn-requests.
        partitions: partitions of the topics that data partitions are hashed to.
        replication_factor: of system topics, and of topics that links create on their target, when
            they are created there. With `auto` it is the cluster's `default.replication.factor`
            where that is above 1, else 3, or the number of brokers where there are fewer.
        min_insync_replicas: `min.insync.replicas` of the same topics; `auto` is 2 from three
            replicas on, else 1.
        txn_log_batching_enabled: whether log records share entries (A7).
        txn_log_batch_records_max: records in an entry at most (A3).
        txn_log_batch_bytes_max: bytes in an entry at most (A3).
        txn_log_batch_delay_ms_max: in timer mode, how long a record waits for others (A3).
        txn_log_flush_mode: `eager` also writes as soon as no write is under way (A3).
        pending_ack_batching_enabled, pending_ack_batch_records_max, pending_ack_batch_bytes_max,
            pending_ack_batch_delay_ms_max, pending_ack_flush_mode: the same of the log of
            pending acknowledgements.
        snapshot_changes_max: after so many outcomes on a data partition its snapshot is due (E7).
        snapshot_interval_ms: after a first outcome, it is due so much later at most (E7).
        snapshot_part_bytes_max: aborted transactions in a sealed part, in bytes (E2).
        index_topics: whose aborted native transactions the workers index (F3), with commas between;
            those that do not exist yet are waited for.
        txn_timeout_ms_max: the longest a transaction may ask to stay open (C2).
        session_timeout_s: a worker silent for so long loses its partitions.
        broker_away_s_max: a worker whose cluster is away for longer gives up.
        request_timeout_s: a request to a broker without an answer for so long has failed.
        security_protocol, sasl_mechanism, sasl_username, sasl_password, ssl_ca_location,
            ssl_certificate_location, ssl_key_location, ssl_key_password,
            ssl_endpoint_identification_algorithm: librdkafka's options of these names, with dots,
            for every Kafka client.
        web_host: the address that /metrics, /livez and /readyz of a worker are bound to.
        web_port: their port; 0 takes a free one, which the worker names when it serves.
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
    txn_log_batch_bytes_max: int = 4 * _MIB
    txn_log_batch_delay_ms_max: int = 1
    txn_log_flush_mode: Literal["eager", "timer"] = "eager"
    pending_ack_batching_enabled: bool = True
    pending_ack_batch_records_max: int = 512
    pending_ack_batch_bytes_max: int = 4 * _MIB
    pending_ack_batch_delay_ms_max: int = 1
    pending_ack_flush_mode: Literal["eager", "timer"] = "eager"
    snapshot_changes_max: int = 1000
    snapshot_interval_ms: int = 5000
    snapshot_part_bytes_max: int = 256 * _KIB
    index_topics: str = ""
    txn_timeout_ms_max: int = 15 * _MINUTE_MS
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
        """How the cluster of this name is reached; `bootstrap_servers` is that of `cluster`.

        What is set of TLS and SASL holds for every cluster that has no options of its own.

        Raises:
            ConfigError: no cluster is named so; suggests the nearest.
        """
        shared = {"options": self.kafka_options}
        if name in self.clusters:
            found = self.clusters[name]
            return found if found.options else found.model_copy(update=shared)
        if name == self.cluster and "bootstrap_servers" in self.model_fields_set:
            return ClusterAddress(bootstrap_servers=self.bootstrap_servers, **shared)
        raise unknown_cluster(name, self.clusters)

    def check_own_name(self) -> None:
        """Passes unless `bootstrap_servers` are those of another cluster than `cluster`.

        Raises:
            ConfigError: they are, by what `clusters` says; two clusters would have one name.
        """
        for name, one in self.clusters.items():
            if name != self.cluster and one.bootstrap_servers == self.bootstrap_servers:
                raise ConfigError(
                    f"{self.bootstrap_servers} is cluster {name}, and cluster {self.cluster} here",
                    detail="what clusters tell each other would bear a wrong name",
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
                    hint="correct one of them",
                )

    def _check_source(self, name: str) -> None:
        if name == self.cluster:
            raise ConfigError(
                f"replicate_from names {name}, the worker's own cluster",
                hint="name the others; `cluster` is the own one",
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
        return (init_settings,)  # `load_settings` reads the others, to know what came from where

    @property
    def kafka_options(self) -> dict[str, str]:
        """What is set of TLS and SASL, under librdkafka's names; secrets in clear."""
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
        """Of topics that are created."""
        return WantedReplicas(self.replication_factor, self.min_insync_replicas)

    @property
    def kafka(self) -> KafkaConfig:
        """The cluster, as the Kafka connector takes it."""
        return KafkaConfig(
            bootstrap_servers=self.bootstrap_servers,
            extra=self.kafka_options,
            request_timeout_s=self.request_timeout_s,
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
"""The settings that are librdkafka's; in its names are dots."""


class _SettingError(ConfigError):
    """What is wrong with the setting `name`; `load_settings` adds where that came from."""

    def __init__(self, name: str, primary: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(primary, detail=detail, hint=hint)
        self.name = name


class Loaded(NamedTuple):
    """The settings in force, and where each came from: option, a variable, a file or default."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings(**given: Any) -> Settings:
    """The settings in force: what is given, else the environment (STILLTIDE_*), else the file that
    STILLTIDE_CONFIG names, else the defaults.

    Given values of None count as not given, as options of a command that were left out.

    Raises:
        ConfigError: an unknown name (suggests the nearest), a value not of the setting's type, or
            out of its bounds (names bound and reason), or a file that cannot be read; names where
            it came from.
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
    is_port = port.isdecimal() and 1 <= int(port) <= _PORT_MAX
    if not host or not is_port or any(letter.isspace() for letter in server):
        raise _SettingError(
            name,
            f"{name} holds {server!r}, which is not host:port",
            hint="for example 127.0.0.1:9092, several with commas between them",
        )


def _check_topic(topic: str) -> None:
    if not is_topic_name(topic):
        raise _SettingError(
            "index_topics",
            f"index_topics holds {topic!r}, which no topic can be called",
            hint="name topics with commas between them, for example orders,payments",
        )


def _check_security(settings: Settings) -> None:
    protocol = settings.security_protocol or "PLAINTEXT"
    for name in SECURITY:
        prefix = name.partition("_")[0].upper()
        if prefix != "SECURITY" and getattr(settings, name) is not None and prefix not in protocol:
            raise _SettingError(
                name,
                f"{name} is set, but security_protocol is {protocol}",
                detail="it would not be used, and the connection not be protected as was meant",
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
            hint="a client shows both, or neither",
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
                hint="put the PEM file there, readable for the user this runs as, or name another",
            ) from error


def _where(name: str) -> str:
    return (
        f"set it with {ENV_PREFIX}{name.upper()}, in the file that {CONFIG_VARIABLE} names, "
        "or by the option of the command"
    )


_SECRETS = frozenset({"sasl_password", "ssl_key_password"})
