"""Decides which configs of a topic a link alters on its target.

*Source*: docs/protocols H8.

*Invariants*:
- A config is altered only if it is one of `FOLLOWED` and no entry of `LeftAlone` names it.
- Without a leading cluster, a config is altered only if the target still has the value that it had
  when both sides were last in step, or a value that this link tried to set since.
- A change that could stop the link waits until the link has copied what was on the source when the
  change was seen. All changes of a topic wait together, because a part of them could delete
  records; only a higher `max.message.bytes` never waits.
- Retention is followed only while both sides have the same `cleanup.policy`.

Refuses: to carry anything for a topic that other links write to or that is itself a copy, unless a
leading cluster is named (`authority`).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from stilltide.pipeline.core.group_choice import fits
from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.topics import CLEANUP_POLICY, compacts, same_config
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition

POLICY = CLEANUP_POLICY
LIMIT = "max.message.bytes"
_RETENTION = frozenset({"retention.bytes", "retention.ms"})

FOLLOWED = (
    POLICY,
    "delete.retention.ms",
    "max.compaction.lag.ms",
    LIMIT,
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
)
"""The configs that decide which records readers of a topic find."""

LIMIT_BYTES_MIN = 1_048_588
"""Lowest `max.message.bytes` that a link sets, Kafka's default: brokers compare it with whole
batches, and a link writes many records in a batch."""


def carried(config: str, value: str) -> str:
    """The value that a target gets for a value that is set on the source's topic."""
    return str(max(int(value), LIMIT_BYTES_MIN)) if config == LIMIT else value


class Authority(Enum):
    """H8: what a link may alter of a topic's configs; `OTHER`: nothing, another cluster leads."""

    NONE = "none"
    OTHER = "other"
    CHANGES = "changes"
    ALL = "all"


def authority(
    lead: str,
    source: ClusterName,
    into_source: Collection[ClusterName],
    into_target: Collection[ClusterName],
) -> Authority:
    """What a link may alter; of all links to and from a cluster at most one alters a topic there.

    Args:
        lead: name of the cluster that leads the configs of all topics; empty: none is named.
        source: the link's source.
        into_source: clusters from which links have copied the topic to the link's source.
        into_target: clusters from which links have copied the topic to the link's target.
    """
    if lead:
        return Authority.ALL if lead == source else Authority.OTHER
    alone = not into_source and set(into_target) <= {source}
    return Authority.CHANGES if alone else Authority.NONE


class LeftAlone(NamedTuple):
    """The configs of topics on the target that a link never alters.

    Attributes:
        entries: patterns of topics, each with the name of a config.
    """

    entries: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parsed(cls, entries: Iterable[str]) -> "LeftAlone":
        """From entries such as `retention.ms`, for all topics, and `orders-*:cleanup.policy`.

        Raises:
            ConfigError: an entry names no config that links follow.
        """
        left_alone: list[tuple[str, str]] = []
        for entry in entries:
            topic, colon, config = entry.rpartition(":")
            if config not in FOLLOWED or (colon and not topic):
                raise ConfigError(
                    f"{entry!r} names no config that links follow",
                    detail=f"links follow {', '.join(FOLLOWED)}",
                    hint="write the config, or topic:config, such as orders-*:retention.ms",
                )
            left_alone.append((topic or "*", config))
        return cls(tuple(left_alone))

    def has(self, topic: str, config: str) -> bool:
        """Whether a config of a topic is left alone."""
        return any(config == named and fits(topic, [one]) for one, named in self.entries)


class TopicConfigs(NamedTuple):
    """The configs of a topic on one side.

    Attributes:
        own: the values that are set on the topic itself.
        effective: all values, those of the cluster included; not needed if both sides are `alike`.
    """

    own: Mapping[str, str]
    effective: Mapping[str, str | None]

    @property
    def compacted(self) -> bool:
        """Whether records are removed by their keys."""
        return compacts(self.effective)


def alike(source: Mapping[str, str], target: Mapping[str, str]) -> bool:
    """Whether the same followed configs are set on both topics, to the same values."""
    there = {name: carried(name, value) for name, value in source.items() if name in FOLLOWED}
    here = {name: value for name, value in target.items() if name in FOLLOWED}
    return there.keys() == here.keys() and all(
        same_config(here[name], value) for name, value in there.items()
    )


class TopicPair(NamedTuple):
    """A topic as a link sees it at one moment.

    Attributes:
        topic: its name.
        incarnations: the topic of the source and that of the target.
        source: its configs on the source.
        target: its configs on the target.
        authority: what the link may alter.
        positions: the link's position in each partition; 0 where none is known yet.
    """

    topic: str
    incarnations: tuple[bytes, bytes]
    source: TopicConfigs
    target: TopicConfigs
    authority: Authority
    positions: Mapping[TopicPartition, int]

    def wanted(self, config: str) -> str | None:
        """The value that the target should have of its own."""
        value = self.source.own.get(config)
        return None if value is None else carried(config, value)

    def in_step(self, config: str) -> bool:
        """Whether both sides have the same value, set on the topic or by the clusters."""
        wanted, own = self.wanted(config), self.target.own.get(config)
        if wanted is None or own is None:
            theirs = self.source.effective.get(config) if wanted is None else wanted
            ours = self.target.effective.get(config)
            return wanted == own or (theirs is not None and same_config(ours, theirs))
        return same_config(own, wanted)

    def is_raised(self, config: str) -> bool:
        """Whether the source's topic accepts larger batches than the target's."""
        wanted = self.wanted(config)
        limit = self.target.effective.get(LIMIT)
        return (
            config == LIMIT
            and wanted is not None
            and limit is not None
            and int(wanted) > int(limit)
        )


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """Alter configs of a topic of the target; None takes the topic's own value away."""

    topic: str
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ReadSourceEnds:
    """Read the end offsets (high watermarks) of a topic's partitions on the source.

    The source had the configs that wait before the call; `ends_read` takes the answer.
    """

    topic: str


@dataclass(frozen=True, slots=True)
class ReportDiffering:
    """The configs of a topic that differ now, and are not altered; none: no config differs so.

    Attributes:
        topic: the topic.
        configs: values on source and target, by config.
        waiting: whether they are altered as soon as the link has copied enough.
    """

    topic: str
    configs: Mapping[str, tuple[str | None, str | None]]
    waiting: bool = False


ConfigEffect = AlterConfigs | ReadSourceEnds | ReportDiffering


@dataclass(slots=True)
class _State:
    """What is known of one topic.

    Attributes:
        incarnations: of both sides.
        ours: by config, the target's value when both sides were last in step, and values that this
            link tried to set since.
        waiting: changes that wait, and None without any.
        ends: ends of the source to be copied before they are carried; None until they are read.
        reported: the last report.
    """

    incarnations: tuple[bytes, bytes]
    ours: dict[str, set[str | None]] = field(default_factory=dict[str, set[str | None]])
    waiting: dict[str, str | None] | None = None
    ends: Mapping[TopicPartition, EndOffset] | None = None
    reported: ReportDiffering | None = None


class ConfigFollower:
    """The configs of all topics of one link.

    Args:
        left_alone: configs that are never altered.
    """

    def __init__(self, left_alone: LeftAlone) -> None:
        self._left_alone = left_alone
        self._states: dict[str, _State] = {}
        self._created: dict[str, dict[str, str]] = {}

    def created(self, topic: str, own: Mapping[str, str]) -> None:
        """The link has created a topic with the configs that the source had then."""
        self._created[topic] = dict(own)

    def seen(self, pair: TopicPair) -> list[ConfigEffect]:
        """A topic was looked at; a topic that was created again is looked at for the first time."""
        state = self._states.get(pair.topic)
        if state is None or state.incarnations != pair.incarnations:
            state = self._states[pair.topic] = _State(pair.incarnations)
            if (own := self._created.pop(pair.topic, None)) is not None:
                state.ours = {config: {own.get(config)} for config in FOLLOWED}
        differing = self._differing(pair, state)
        due = {
            config: pair.wanted(config) for config in differing if _may_carry(pair, state, config)
        }
        if POLICY not in due and not pair.in_step(POLICY):
            due = {config: value for config, value in due.items() if config not in _RETENTION}
        effects, due_now = _split(pair, state, due)
        for config, value in due_now.items():
            state.ours.setdefault(config, set()).add(value)
        if due_now:
            effects.append(AlterConfigs(pair.topic, due_now))
        return [*_report(pair, state, differing.keys() - due_now.keys()), *effects]

    def ends_read(self, topic: str, ends: Mapping[TopicPartition, EndOffset]) -> None:
        """The source's ends were read, as `ReadSourceEnds` asked."""
        state = self._states.get(topic)
        if state is not None and state.ends is None:
            state.ends = ends

    def keep(self, topics: Collection[str]) -> None:
        """Forgets all topics but these."""
        for topic in self._states.keys() - set(topics):
            del self._states[topic]

    def _differing(self, pair: TopicPair, state: _State) -> dict[str, None]:
        """The configs that differ and are not left alone, in order; notes those in step."""
        differing: dict[str, None] = {}
        for config in FOLLOWED:
            if pair.in_step(config):
                state.ours[config] = {pair.target.own.get(config)}
            elif not self._left_alone.has(pair.topic, config):
                differing[config] = None
        return differing


def _may_carry(pair: TopicPair, state: _State, config: str) -> bool:
    match pair.authority:
        case Authority.ALL:
            return True
        case Authority.CHANGES:
            # A lower limit on the target would stop the link at the first larger record.
            own = pair.target.own.get(config)
            return own in state.ours.get(config, ()) or pair.is_raised(config)
        case Authority.NONE | Authority.OTHER:
            return False


def _split(
    pair: TopicPair, state: _State, due: dict[str, str | None]
) -> tuple[list[ConfigEffect], dict[str, str | None]]:
    """What the driver must read, and which of the changes are carried now."""
    raised = {config: value for config, value in due.items() if pair.is_raised(config)}
    others = {config: value for config, value in due.items() if config not in raised}
    if not _could_stop_the_link(pair, others):
        state.waiting = state.ends = None
        return [], due
    if state.waiting != others:
        state.waiting, state.ends = others, None
    if state.ends is None:
        return [ReadSourceEnds(pair.topic)], raised
    if all(pair.positions.get(data, 0) >= end for data, end in state.ends.items()):
        return [], due
    return [], raised


def _could_stop_the_link(pair: TopicPair, due: Mapping[str, str | None]) -> bool:
    """Whether the target could refuse records that the source took before its change.

    A compacted topic takes no record without key; a lower limit refuses large records.
    """
    begins_to_compact = POLICY in due and pair.source.compacted and not pair.target.compacted
    return begins_to_compact or LIMIT in due


def _report(pair: TopicPair, state: _State, configs: Collection[str]) -> list[ConfigEffect]:
    values = {
        config: (pair.source.own.get(config), pair.target.own.get(config))
        for config in FOLLOWED
        if config in configs
    }
    if pair.authority is Authority.OTHER:
        values = {}  # the link from the leading cluster reports
    now = ReportDiffering(pair.topic, values, waiting=bool(values and state.waiting))
    before, state.reported = state.reported, now
    return [] if now == (before or ReportDiffering(pair.topic, {})) else [now]
