"""Which topics a pattern takes, and which consumer groups are replicated.

*Source*: docs/protocols D8, I15; shell patterns as `fnmatch` of the standard library has them.

*Invariants*: a setting of a topic and a group by their names wins over every pattern. Of patterns
that fit, the one with the most plain characters wins, and of equally long ones one that disables.
No pattern takes a topic or group of Stilltide, or a topic of Kafka itself. No topic name has a
character that makes a name a pattern, so the two cannot be mistaken for each other.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from stilltide.schemas.pending_ack.dead_letters import DEAD_LETTER_SUFFIX
from stilltide.schemas.topics import PREFIX

_OF_KAFKA = "__"


def is_pattern(name: str) -> bool:
    """Whether a name is a shell pattern such as `orders-*`."""
    return not set(name).isdisjoint("*?[")


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether a topic has one of these names, or fits one of these patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class TopicPatterns:
    """The topics of a subscription: names, which must exist, and patterns (D8).

    Attributes:
        topics: names and patterns.
        left_out: topics that no pattern takes.
    """

    topics: Sequence[str]
    left_out: Collection[str] = ()

    @property
    def names(self) -> list[str]:
        """The plain names."""
        return [one for one in self.topics if not is_pattern(one)]

    @property
    def patterns(self) -> list[str]:
        """The patterns."""
        return [one for one in self.topics if is_pattern(one)]

    def taken_by(self, pattern: str, existing: Iterable[str]) -> list[str]:
        """The existing topics that a pattern takes.

        A dead-letter topic is taken only by a pattern that ends as the names of such topics do: its
        messages were delivered already, from the topic where they failed.
        """
        return [
            name
            for name in existing
            if fnmatchcase(name, pattern)
            and not name.startswith((PREFIX, _OF_KAFKA))
            and name not in self.left_out
            and (pattern.endswith(DEAD_LETTER_SUFFIX) or not name.endswith(DEAD_LETTER_SUFFIX))
        ]

    def chosen(self, existing: Collection[str]) -> list[str]:
        """The plain names, whether they exist or not, and all that the patterns take; sorted."""
        taken = (self.taken_by(one, existing) for one in self.patterns)
        return sorted({*self.names, *(name for names in taken for name in names)})


_CACHED = 65_536
"""Pairs of topic and group whose answer is kept; a controller asks twenty times a second."""


Pair = tuple[str, str]
"""A topic and a group."""


class GroupSetting(NamedTuple):
    """What an operator has set for groups on topics.

    Attributes:
        topic: a name, or a pattern such as `orders-*`.
        group: a name, or a pattern such as `billing*`.
        enabled: whether the groups are replicated.
    """

    topic: str
    group: str
    enabled: bool

    @property
    def is_pattern(self) -> bool:
        """Whether topic or group is a pattern."""
        return is_pattern(self.topic) or is_pattern(self.group)

    @property
    def plain_length(self) -> int:
        """Number of characters of the patterns that stand for themselves."""
        return sum(one not in "*?[]" for one in self.topic + self.group)

    def fits(self, topic: str, group: str) -> bool:
        """Whether a topic and a group have these names, or fit these patterns."""
        return _fits_group(self.group, group) and _fits_topic(self.topic, topic)


class GroupChoice:
    """The settings of a cluster.

    Args:
        settings: topic, group, and whether the group is replicated.
    """

    def __init__(self, settings: Iterable[tuple[str, str, bool]]) -> None:
        given = [GroupSetting(*setting) for setting in settings]
        self._named: defaultdict[str, dict[str, GroupSetting]] = defaultdict(dict)
        for setting in given:
            if not setting.is_pattern:
                self._named[setting.topic][setting.group] = setting
        self._patterns = sorted(
            (setting for setting in given if setting.is_pattern),
            key=lambda setting: (-setting.plain_length, setting.enabled, setting),
        )
        self.setting_of = lru_cache(_CACHED)(self._setting_of)

    @property
    def has_patterns(self) -> bool:
        """Whether a pattern enables groups, so that the cluster's groups must be listed."""
        return any(one.enabled for one in self._patterns)

    def _setting_of(self, topic: str, group: str) -> GroupSetting | None:
        """The setting that counts for the group on the topic; None: there is none (I15)."""
        named = self._named.get(topic, {}).get(group)
        if named is not None:
            return named
        return next((one for one in self._patterns if one.fits(topic, group)), None)

    def may_take(self, group: str) -> bool:
        """Whether a pattern may enable the group on some topic."""
        return any(one.enabled and _fits_group(one.group, group) for one in self._patterns)

    def taken(self, committed: Mapping[str, Collection[str]]) -> dict[GroupSetting, list[Pair]]:
        """The topics and groups that each pattern enables, sorted.

        Args:
            committed: the topics of which each group has committed an offset.
        """
        by_setting: defaultdict[GroupSetting, list[Pair]] = defaultdict(list)
        for pair in sorted((topic, group) for group, of in committed.items() for topic in of):
            setting = self.setting_of(*pair)
            if setting is not None and setting.is_pattern and setting.enabled:
                by_setting[setting].append(pair)
        return dict(by_setting)

    def topics(self) -> set[str]:
        """The topics of which a group is enabled by name."""
        named = self._named.items()
        return {topic for topic, groups in named if any(one.enabled for one in groups.values())}

    def groups(self, topic: str, known: Collection[str]) -> set[str]:
        """The groups of the topic that are enabled by name, and those of `known` not disabled."""
        named = self._named.get(topic, {})
        enabled = {group for group, one in named.items() if one.enabled}
        settings = ((group, self.setting_of(topic, group)) for group in known)
        return enabled | {group for group, one in settings if one is None or one.enabled}


def _fits_topic(pattern: str, topic: str) -> bool:
    return topic == pattern or bool(TopicPatterns([pattern]).taken_by(pattern, [topic]))


def _fits_group(pattern: str, group: str) -> bool:
    fits = fnmatchcase(group, pattern) and not group.startswith(PREFIX)
    return group == pattern or fits
