"""One rule that can be switched off, and replacements that several rules share."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Ablation(NamedTuple):
    """One rule that is switched off.

    Attributes:
        rule: the letter and number of the rule.
        text: what is switched off.
        owner: the class or module with the check.
        name: the name of the check.
        make: makes the check's replacement of the check.
        clusters: how many clusters a world needs to notice.
        covered: why worlds do not notice the loss; empty: they have to.
        covered_by: the rule that covers the loss: worlds that lack both rules notice.
        tests: a path of tests that fail without the rule, where worlds do not notice the loss.
    """

    rule: str
    text: str
    owner: Any
    name: str
    make: Callable[[Any], Any]
    covered: str = ""
    clusters: int = 1
    covered_by: str = ""
    tests: str = ""


def nothing(_original: Any) -> Any:
    """A call that has no effects."""
    return lambda *_, **__: []


def none(_original: Any) -> Any:
    """A call that returns None."""
    return lambda *_, **__: None
