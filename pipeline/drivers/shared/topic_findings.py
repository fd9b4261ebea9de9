"""Looks at the topics of a cluster, and alters configs that fall short.

*Source*: docs/protocols C18, E10; `core.topic_shortfalls` decides what falls short, and what may be
altered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import TopicAdmin
from stilltide.pipeline.core.replicas import WantedReplicas, complete, next_step
from stilltide.pipeline.core.topic_shortfalls import (
    KAFKAS_OWN,
    Shortfall,
    TopicState,
    alter_command,
    alterations,
    compacting,
    shortfalls,
    unwanted_configs,
)
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.topics import MIN_INSYNC_REPLICAS, Replicas, TopicSpec, compacts


class TopicFinding(NamedTuple):
    """What was found about one topic.

    Attributes:
        spec: what the topic should be, with replicas.
        state: the topic as it is; None if it does not exist.
        shortfalls: what falls short; empty for a topic that does not exist.
    """

    spec: TopicSpec
    state: TopicState | None
    shortfalls: tuple[Shortfall, ...] = ()

    @property
    def is_kafkas_own(self) -> bool:
        """Whether the topic is Kafka's; Kafka creates it when it is first used."""
        return self.spec.name in KAFKAS_OWN

    @property
    def good(self) -> bool:
        """Whether nothing falls short."""
        return not self.shortfalls and (self.state is not None or self.is_kafkas_own)


async def find(
    admin: LogAdmin,
    topics: TopicAdmin,
    specs: Sequence[TopicSpec],
    replicas: Replicas,
    *,
    others: Sequence[str] = (),
    compacted: Mapping[str, int | None] = MappingProxyType({}),
) -> list[TopicFinding]:
    """A finding for each topic, in this order; those of `KAFKAS_OWN` come last.

    Args:
        admin: admin client of the cluster.
        topics: admin of the replicas and configs of the same cluster's topics.
        specs: topics with all their properties.
        replicas: replicas that every topic should have.
        others: names of topics of which only the replicas matter.
        compacted: topics that should not compact (C18), and since when a worker has seen that.

    Raises:
        ConnectorError: the cluster is away, or refuses an answer.
    """
    known = [replace(spec, replicas=replicas) for spec in specs]
    wanted = {*(spec.name for spec in known), *others, *KAFKAS_OWN}
    partial = [*dict.fromkeys([*others, *compacted]), *KAFKAS_OWN]
    names = [*(spec.name for spec in known), *partial]
    placements, configs = await topics.placements(names), await admin.topic_configs(names)
    known += [
        TopicSpec(name, len(placements.get(name, ())) or 1, replicas=replicas) for name in partial
    ]
    findings: list[TopicFinding] = []
    for spec in known:
        if spec.name not in placements or spec.name not in configs:
            findings.append(TopicFinding(spec, None))
            continue
        state = TopicState(placements[spec.name], configs[spec.name])
        short = shortfalls(spec, state) if spec.name in wanted else []
        if spec.name in compacted and compacts(state.configs):
            short.append(compacting(spec.name, state, compacted[spec.name]))
        findings.append(TopicFinding(spec, state, tuple(short)))
    return findings


def planned(findings: Sequence[TopicFinding]) -> dict[str, Mapping[str, str]]:
    """The configs that `TopicAdmin.alter_configs` may set, by topic."""
    changes = {one.spec.name: alterations(one.shortfalls) for one in findings}
    return {topic: configs for topic, configs in changes.items() if configs}


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
            actual = _found(described[name].replica_count, configs[name].get(MIN_INSYNC_REPLICAS))
            _warn(name, actual, later)
            _warn_of_configs(spec, configs[name])


def _found(count: int, min_insync: str | None) -> Replicas:
    return Replicas(count, int(min_insync or 1))


def _warn(topic: str, actual: Replicas, wanted: Replicas) -> None:
    hint = next_step(topic, actual, wanted)
    if hint is not None:
        _log.warning(
            "topic_has_few_replicas",
            topic=topic,
            replication_factor=actual.factor,
            wanted_replication_factor=wanted.factor,
            min_insync_replicas=actual.min_insync,
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
