"""Creates topics with the replicas that the settings want, and warns of topics that fall short.

*Source*: docs/protocols E10.

*Invariants*: an existing topic is used with its replicas and wanted configs, and is never changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.core.replicas import WantedReplicas, complete, next_step
from stilltide.pipeline.core.topic_state import alter_command, unwanted_configs
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.topics import MIN_INSYNC_REPLICAS, Replicas, TopicSpec

_log = get_logger(__name__)

_OR_CHECK = "`stilltide topics check --apply` shows and plans this for all topics, or: "


async def ensure_replicated(
    admin: LogAdmin, specs: Sequence[TopicSpec], wanted: WantedReplicas
) -> None:
    """Creates missing topics and verifies the others, as `LogAdmin.ensure_topics`.

    Raises:
        ConfigError: fewer replicas are possible than must be in sync.
        ConnectorError: see `LogAdmin.ensure_topics`.
    """
    cluster = await admin.broker_figures()
    replicas, later = wanted.on(cluster), wanted.on(complete(cluster))
    await admin.ensure_topics([replace(spec, replicas=replicas) for spec in specs])
    names = [spec.name for spec in specs]
    described, configs = await admin.describe_topics(names), await admin.topic_configs(names)
    for spec in specs:
        name = spec.name
        if name in described and name in configs:
            found = _found(described[name].replica_count, configs[name].get(MIN_INSYNC_REPLICAS))
            _warn(name, found, later)
            _warn_of_configs(spec, configs[name])


def _found(count: int, min_insync: str | None) -> Replicas:
    return Replicas(count, int(min_insync or 1))


def _warn(topic: str, found: Replicas, wanted: Replicas) -> None:
    hint = next_step(topic, found, wanted)
    if hint is not None:
        _log.warning(
            "topic_has_few_replicas",
            topic=topic,
            replication_factor=found.factor,
            wanted_replication_factor=wanted.factor,
            min_insync_replicas=found.min_insync,
            wanted_min_insync_replicas=wanted.min_insync,
            hint=_OR_CHECK + hint,
        )


def _warn_of_configs(spec: TopicSpec, configs: Mapping[str, str | None]) -> None:
    wanted = unwanted_configs(spec, configs)
    if wanted:
        _log.warning(
            "topic_has_other_configs",
            topic=spec.name,
            configs={name: configs.get(name) for name in wanted},
            wanted_configs=wanted,
            hint=_OR_CHECK + alter_command(spec.name, wanted),
        )
