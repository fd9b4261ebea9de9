"""Parts of a long list of topics whose policies are asked for.

*Source*: docs/protocols C18.
"""

from collections.abc import Iterator, Sequence

NAMES_PER_CALL = 100
"""Topics in one question: the configs of each take 0.1 ms of the processor."""


def questions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """The names in order, in parts that are asked for together."""
    for first in range(0, len(names), NAMES_PER_CALL):
        yield names[first : first + NAMES_PER_CALL]
