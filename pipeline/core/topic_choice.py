"""Which topics names and patterns choose.

*Source*: docs/protocols D8; shell patterns as `fnmatch` of the standard library has them.

*Invariants*: a pattern never takes a topic of Stilltide or of Kafka itself. No topic name has a
character that makes a name a pattern, so the two cannot be mistaken for each other.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

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
