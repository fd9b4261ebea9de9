"""Options, connections and exit codes of commands that ask a running cluster.

*Invariants*: nothing here imports Faust; a missing answer is reported on stderr and by the exit
code.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, TypeVar

import click

from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import GroupConnector
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.config.clusters import unknown_cluster
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.outside_log import OutsideLog
from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.values import ClusterName

C = TypeVar("C")
T = TypeVar("T")
_Command = TypeVar("_Command", bound=Callable[..., Any])

EXIT_INCOMPLETE = 4
"""Exit code if some owners did not answer; the output is from the others."""

COORDINATORS = "coordinators"
STORES = "pending-ack stores"


def exit_codes(owners: str) -> str:
    """The exit codes in the help of a command that asks `owners`."""
    return f"""\b
Exit codes:
  0  done: all {owners} answered
  1  the command failed; the error names the next step
  4  some {owners} did not answer; the output is from the others
"""


EXIT_CODES = exit_codes(COORDINATORS)


def options(*added: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Adds several options to a command; the last of them comes first in its help."""

    def decorate(command: _Command) -> _Command:
        for option in added:
            command = option(command)
        return command

    return decorate


_CLUSTER = "stilltide.pipeline.cli.cluster"
"""Where click keeps the value of `--cluster` for `command_settings`."""


def _note_cluster(ctx: click.Context, _param: click.Parameter, name: str | None) -> None:
    ctx.meta[_CLUSTER] = name


def _known_clusters(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The names for completion in a shell; none if the settings are not in order."""
    try:
        names = load_settings().clusters
    except ConfigError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


bootstrap_option = options(
    click.option("--bootstrap-servers", help="Brokers of the cluster: host:port[,host:port]."),
    click.option(
        "--cluster",
        metavar="NAME",
        expose_value=False,
        callback=_note_cluster,
        shell_complete=_known_clusters,
        help="Name of the cluster, with its address in the setting `clusters`.  [default: a]",
    ),
)
"""Adds `--cluster` and `--bootstrap-servers`; `command_settings` takes their values."""


def command_settings(**given: Any) -> Settings:
    """The settings in force for a command with `bootstrap_option`.

    Raises:
        ConfigError: `--cluster` names a cluster without an address; or as `load_settings`.
    """
    ctx = click.get_current_context(silent=True)
    name: str | None = None if ctx is None else ctx.meta.get(_CLUSTER)
    settings = load_settings(cluster=name, **given)
    if name is not None and "bootstrap_servers" not in settings.model_fields_set:
        raise unknown_cluster(name, settings.clusters)
    return settings


clusters_option = click.option(
    "--clusters", help="Clusters by name: 'a=host:port b=host:port'.  [default: STILLTIDE_CLUSTERS]"
)
"""Option of commands that ask more than one cluster."""


timeout_option = click.option(
    "--timeout-s",
    type=click.FloatRange(0.1, 600),
    default=30.0,
    show_default=True,
    help="Longest time that a cluster may be away, or an answer may take.",
)


web_port_option = click.option(
    "--web-port",
    type=click.IntRange(0, 65_535),
    help="Port of /metrics, /livez and /readyz; 0 takes a free one.  [default: none]",
)
"""Option of commands that run until stopped."""


replicas_options = options(
    click.option(
        "--min-insync-replicas",
        metavar="N|auto",
        help="min.insync.replicas of topics that are created.  "
        "[default: auto: 2 from three replicas on, else 1]",
    ),
    click.option(
        "--replication-factor",
        metavar="N|auto",
        help="Replicas of topics that are created.  [default: auto: the cluster's default if "
        "above 1, else 3, or the number of brokers if there are fewer]",
    ),
)
"""Adds the options of commands that create topics."""


def on_stop(call: Callable[[], object]) -> None:
    """Has SIGINT and SIGTERM make a call on the running loop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, call)


def connector_of(settings: Settings, cluster: str) -> KafkaConnector:
    """A connector to the cluster of this name.

    Raises:
        ConfigError: no cluster has this name.
    """
    return KafkaConnector(settings.kafka_of(cluster))


def connected(clusters: str | None) -> dict[ClusterName, GroupConnector]:
    """A connector for each cluster that the settings name.

    Raises:
        ConfigError: the settings name no cluster.
    """
    settings = load_settings(clusters=clusters)
    if not settings.clusters:
        raise ConfigError(
            "no clusters are named",
            hint="set STILLTIDE_CLUSTERS or --clusters, such as 'a=127.0.0.1:9092 b=...'",
        )
    return {ClusterName(name): connector_of(settings, name) for name in settings.clusters}


class Target(NamedTuple):
    """The cluster that a command asks, and the time-out of an answer."""

    connector: GroupConnector
    timeout_s: float


cluster_options = options(
    click.option(
        "--timeout-s",
        type=click.FloatRange(0.1, 300),
        default=10.0,
        show_default=True,
        help="Longest time for an answer.",
    ),
    bootstrap_option,
)
"""Adds the options that name the cluster; `target` takes their values."""


def cluster_connector(bootstrap_servers: str | None) -> KafkaConnector:
    """A connector to the cluster that the options of a command name."""
    settings = command_settings(bootstrap_servers=bootstrap_servers)
    return KafkaConnector(settings.kafka)


def target(bootstrap_servers: str | None, timeout_s: float = 10.0) -> Target:
    """The cluster that the options of a command name, with the time-out of an answer."""
    return Target(cluster_connector(bootstrap_servers), timeout_s)


def ask(
    owners: Callable[..., AbstractAsyncContextManager[C]],
    asked: Target,
    work: Callable[[C], Awaitable[T]],
) -> T:
    """Runs `work` with the owners of a cluster: `Coordinators` or `PendingAckStores`."""

    async def run() -> T:
        async with owners(asked.connector, request_timeout_s=asked.timeout_s) as opened:
            return await work(opened)

    return asyncio.run(run())


def answered(answers: Mapping[int, T | None], owners: str = COORDINATORS) -> dict[int, T]:
    """The answers that arrived; `owners` without an answer are named on stderr."""
    say_silent([number for number, answer in answers.items() if answer is None], owners)
    return {number: answer for number, answer in answers.items() if answer is not None}


def say_silent(silent: Sequence[int], owners: str = COORDINATORS) -> None:
    """Names the owners that did not answer on stderr, with the next step; says nothing of none."""
    if silent:
        say(
            f"no answer from {owners} {', '.join(map(str, silent))}\n"
            "  hint: is a worker running for this cluster? start one with `stilltide worker`"
        )


def exit_code(answers: Mapping[int, object | None]) -> int:
    """0 if every owner answered, else `EXIT_INCOMPLETE`."""
    return EXIT_INCOMPLETE if None in answers.values() else 0


_OUTSIDE_MAX = 20
"""Positions that are told one by one; the others are counted."""


def say_outside(outside: Iterable[OutsideLog], at: str = "") -> None:
    """Prints a line and a hint to stderr for each position; `at` names the cluster to a command."""
    positions = list(outside)
    for position in positions[:_OUTSIDE_MAX]:
        say(f"{position.text}\n  hint: {position.command(at)}")
    if len(positions) > _OUTSIDE_MAX:
        say(f"{len(positions) - _OUTSIDE_MAX} more positions lie outside of their logs")
