"""The part of PromQL that the alert rules use, over scrapes of registries.

`promtool` tests the rules on written series, where an image of Prometheus can be had; here they are
asked on what the product exposes. `increase` is the difference of the first and the last sample of
the window: Prometheus extrapolates to its ends, and knows resets of counters.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]

_TOKENS = re.compile(r'\s*("[^"]*"|[A-Za-z_]\w*|\d+(?:e\d+)?|=~|!=|==|[<>=(){}\[\],-])')
_UNITS = {"s": 1, "m": 60, "h": 3600}
_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    ">": lambda one, other: one > other,
    "<": lambda one, other: one < other,
    "==": lambda one, other: one == other,
}
_MATCHED: Mapping[str, Callable[[str, str], bool]] = {
    "=": lambda value, wanted: value == wanted,
    "!=": lambda value, wanted: value != wanted,
    "=~": lambda value, wanted: re.fullmatch(wanted, value) is not None,
}
_FOLDED: Mapping[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max, "min": min}


class Scrape(NamedTuple):
    """What a registry has exposed at a time, in seconds."""

    at_s: float
    samples: Sequence[tuple[str, Labels, float]]


def scrape(registry: CollectorRegistry, at_s: float) -> Scrape:
    """The samples of a registry."""
    return Scrape(
        at_s,
        [
            (sample.name, frozenset(sample.labels.items()), sample.value)
            for family in registry.collect()
            for sample in family.samples
        ],
    )


def asked(expression: str, scrapes: Sequence[Scrape]) -> Vector:
    """What an expression gives at the time of the last scrape.

    Raises:
        ValueError: the expression has a word that is not known here.
    """
    tokens = _TOKENS.findall(expression)
    if "".join(tokens) != re.sub(r"\s", "", expression):
        raise ValueError(f"not all of this is known here: {expression}")
    given = _Question(tokens, scrapes).logical()
    assert isinstance(given, dict), "a rule gives a vector"
    return given


class _Question:
    """Takes an expression apart from the left, and evaluates it on the way."""

    def __init__(self, tokens: Sequence[str], scrapes: Sequence[Scrape]) -> None:
        self._tokens = [*tokens, ""]
        self._at = 0
        self._scrapes = scrapes

    def logical(self) -> Vector | float:
        """`and`, `unless`: pairs by all labels."""
        left = self._compared()
        while (word := self._tokens[self._at]) in {"and", "unless"}:
            self._at += 1
            right = self._compared()
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            wanted = word == "and"
            left = {of: value for of, value in left.items() if (of in right) == wanted}
        return left

    def _compared(self) -> Vector | float:
        """A comparison with a number keeps what it holds for."""
        left = self._difference()
        while (sign := self._tokens[self._at]) in _COMPARED:
            self._at += 1
            right = self._difference()
            assert isinstance(left, dict)
            assert isinstance(right, float)
            left = {of: value for of, value in left.items() if _COMPARED[sign](value, right)}
        return left

    def _difference(self) -> Vector | float:
        left = self._term()
        while self._tokens[self._at] == "-":
            self._at += 1
            right = self._term()
            assert isinstance(left, float)
            assert isinstance(right, dict)
            left = {of: left - value for of, value in right.items()}
        return left

    def _term(self) -> Vector | float:
        word = self._next()
        if word[0].isdigit():
            return float(word)
        if word == "(":
            inner = self.logical()
            self._expect(")")
            return inner
        if word == "time":
            self._expect("(", ")")
            return self._scrapes[-1].at_s
        if word in _FOLDED:
            return self._folded(word)
        if word in {"rate", "increase"}:
            return self._grown(word)
        return self._selected(word, self._matchers(), self._scrapes[-1])

    def _folded(self, word: str) -> Vector:
        self._expect("by", "(")
        names = {self._next()}
        while self._next() == ",":
            names.add(self._next())
        self._expect("(")
        inner = self.logical()
        self._expect(")")
        assert isinstance(inner, dict)
        groups: dict[Labels, list[float]] = {}
        for labels, value in inner.items():
            key = frozenset(pair for pair in labels if pair[0] in names)
            groups.setdefault(key, []).append(value)
        return {key: _FOLDED[word](values) for key, values in groups.items()}

    def _grown(self, word: str) -> Vector:
        self._expect("(")
        name, matchers = self._next(), self._matchers()
        self._expect("[")
        count, unit = self._next(), self._next()
        self._expect("]", ")")
        window_s = float(count) * _UNITS[unit]
        since_s = self._scrapes[-1].at_s - window_s
        within = [it for it in self._scrapes if it.at_s >= since_s]
        first = self._selected(name, matchers, within[0])
        last = self._selected(name, matchers, within[-1])
        per = window_s if word == "rate" else 1.0
        return {of: (value - first[of]) / per for of, value in last.items() if of in first}

    def _matchers(self) -> list[tuple[str, str, str]]:
        matchers: list[tuple[str, str, str]] = []
        if self._tokens[self._at] != "{":
            return matchers
        while self._next() in {"{", ","}:
            label, sign, text = self._next(), self._next(), self._next()
            matchers.append((label, sign, text.strip('"')))
        return matchers

    def _selected(self, name: str, matchers: Sequence[tuple[str, str, str]], of: Scrape) -> Vector:
        return {
            labels: value
            for sample, labels, value in of.samples
            if sample == name
            and all(
                _MATCHED[sign](dict(labels).get(label, ""), wanted)
                for label, sign, wanted in matchers
            )
        }

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, *words: str) -> None:
        for word in words:
            if (given := self._next()) != word:
                raise ValueError(f"{word} was expected, not {given}")
