"""The settings of a process: read once, at the rim, then handed down.

*Source*: protocols.md A (thresholds and floors of the buffered log), C2 (time-outs have a maximum);
architecture.md, Habits of the code (one validation table).

*Invariants*: an unknown name, also of an environment variable, is refused, never ignored.
"""

import difflib
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pipeline.clusters import ClusterAddress, parse_clusters, unknown_cluster
from pipeline.errors import ConfigError
from schemas.framing import RECORDS_MAX
from schemas.topics import is_topic_name

ENV_PREFIX = "STILLTIDE_"
_OTHER_VARIABLES = frozenset({"STILLTIDE_CACHE_DIR"})
"""Variables with our prefix that are read elsewhere."""

_KIB = 1024
_MIB = 1024 * _KIB
_MINUTE_MS = 60 * 1000
_PORT_MAX = 65_535


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
        worker_instance_id: static group membership: a restarted worker with the same id gets its
            partitions back without a rebalance.
        coordinators: partitions of txn-log and txn-requests.
        partitions: partitions of the topics that data partitions are hashed to.
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
        web_host: the address that /metrics, /livez and /readyz of a worker are bound to.
        web_port: their port; 0 takes a free one, which the worker names when it serves.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    cluster: str = "a"
    bootstrap_servers: str = "127.0.0.1:9092"
    clusters: Annotated[Mapping[str, ClusterAddress], NoDecode] = {}
    worker_instance_id: str | None = None
    coordinators: int = 4
    partitions: int = 4
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
    web_host: str = "127.0.0.1"
    web_port: int = 6066

    @field_validator("clusters", mode="before")
    @classmethod
    def _clusters(cls, given: Any) -> Any:
        return parse_clusters(given)

    def address_of(self, name: str) -> ClusterAddress:
        """How the cluster of this name is reached; `bootstrap_servers` is that of `cluster`.

        Raises:
            ConfigError: no cluster is named so; suggests the nearest.
        """
        if name in self.clusters:
            return self.clusters[name]
        if name == self.cluster and "bootstrap_servers" in self.model_fields_set:
            return ClusterAddress(bootstrap_servers=self.bootstrap_servers)
        raise unknown_cluster(name, self.clusters)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, bound in BOUNDS.items():
            _check_bound(name, getattr(self, name), bound)
        addresses = [one.bootstrap_servers for one in self.clusters.values()]
        for server in ",".join([self.bootstrap_servers, *addresses]).split(","):
            _check_server(server.strip())
        for topic in self.indexed_topics:
            _check_topic(topic)
        return self

    @property
    def indexed_topics(self) -> list[str]:
        """The names in `index_topics`, each once, ascending."""
        return sorted({name.strip() for name in self.index_topics.split(",")} - {""})


def load_settings(**given: Any) -> Settings:
    """The settings in force: what is given, else the environment (STILLTIDE_*), else the defaults.

    Given values of None count as not given, as options of a command that were left out.

    Raises:
        ConfigError: an unknown name (suggests the nearest), a value not of the setting's type, or
            out of its bounds (names bound and reason).
    """
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in Settings.model_fields:
            raise _unknown(name, name, list(Settings.model_fields))
    variables = [ENV_PREFIX + name.upper() for name in Settings.model_fields]
    for variable in os.environ:
        if (
            variable.upper().startswith(ENV_PREFIX)
            and variable.upper() not in variables
            and variable not in _OTHER_VARIABLES
        ):
            raise _unknown(f"variable {variable}", variable.upper(), variables)
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"{first['loc'][0]} cannot be {first['input']!r}",
            detail=first["msg"].lower(),
            hint=_where(str(first["loc"][0])),
        ) from error


def _unknown(shown: str, name: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return ConfigError(f"unknown setting: {shown}", hint=f"did you mean {near[0]}?")


def _check_bound(name: str, value: float, bound: Bound) -> None:
    if bound.least <= value <= bound.most:
        return
    side, limit = ("least", bound.least) if value < bound.least else ("most", bound.most)
    raise ConfigError(
        f"{name} is {value}, but the {side} is {limit}", detail=bound.reason, hint=_where(name)
    )


def _check_server(server: str) -> None:
    host, _, port = server.rpartition(":")
    is_port = port.isdecimal() and 1 <= int(port) <= _PORT_MAX
    if not host or not is_port or any(letter.isspace() for letter in server):
        raise ConfigError(
            f"bootstrap_servers holds {server!r}, which is not host:port",
            hint="for example 127.0.0.1:9092, several with commas between them",
        )


def _check_topic(topic: str) -> None:
    if not is_topic_name(topic):
        raise ConfigError(
            f"index_topics holds {topic!r}, which no topic can be called",
            hint="name topics with commas between them, for example orders,payments",
        )


def _where(name: str) -> str:
    return f"set it with {ENV_PREFIX}{name.upper()} or the option of the command"
