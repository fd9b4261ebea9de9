"""What each kind of finding means, what to do about it, and the command that helps.

*Source*: docs/protocols C6, D, F. A command has placeholders in capitals; `TOPIC` and others are
filled in from the first finding of the kind if it names them.

*Invariants*: every kind of finding has a text (`tests/unit/jobs/test_pages.py`).
"""

import tomllib
from pathlib import Path
from typing import NamedTuple

from stilltide.pipeline.jobs.audits.report import Finding, FindingKind
from stilltide.schemas.printable import shortened


class Advice(NamedTuple):
    """The text for a kind of finding.

    Attributes:
        meaning: what the finding means, for readers of the topics.
        action: what to do.
        command: command line that shows more or mends it, with placeholders in capitals.
    """

    meaning: str
    action: str
    command: str


_TEXTS = Path(__file__).with_name("templates") / "advice.toml"

ADVICE = {
    FindingKind(kind): Advice(**texts) for kind, texts in tomllib.loads(_TEXTS.read_text()).items()
}
"""The text for each kind."""


def command(kind: FindingKind, first: Finding | None) -> str:
    """The command of a kind, with what its first listed finding names.

    A name that a shell would not take as one word stays a placeholder: nobody should paste it.
    """
    text = ADVICE[kind].command
    if first is None:
        return text
    names = {
        "TOPIC": first.topic,
        "PARTITION": first.partition,
        "OFFSET": first.offset,
        "TXN": first.txn,
    }
    words = [
        str(names[word]) if names.get(word) is not None and _is_word(str(names[word])) else word
        for word in text.split(" ")
    ]
    return " ".join(words)


def _is_word(text: str) -> bool:
    """Whether a shell takes the text as one word, as it does names of topics (Kafka's rule)."""
    plain = text.replace(".", "").replace("_", "").replace("-", "").replace(":", "")
    return (
        plain.isascii() and plain.isalnum() and not text.startswith("-") and shortened(text) == text
    )
