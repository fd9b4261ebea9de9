"""A notation for logs of batches in one line of text.

A log is written as batches, each `P.n` (n records of transactional producer P), `P.0` (emptied by
the cleaner), `-n` (n plain records), `P~n` (n records of P outside a transaction), `P!` (ABORT),
`P+` (COMMIT), `P?` (a control batch without record), `_n` (n offsets compacted away).
"""

import re

from stilltide.schemas.native.transactions import NO_PRODUCER_ID, Batch, Control

_STEP = re.compile(r"(?P<producer>[a-z]?)(?P<kind>[.~!+?_-])(?P<count>\d*)")
_CONTROLS = {"!": Control.ABORT, "+": Control.COMMIT, "?": Control.OTHER}


def batches(log: str, base: int = 0) -> list[Batch]:
    """The batches of a log in the notation above."""
    found: list[Batch] = []
    for step in log.split():
        match = _STEP.fullmatch(step)
        assert match, step
        producer = ord(match["producer"]) if match["producer"] else NO_PRODUCER_ID
        kind, count = match["kind"], int(match["count"] or 1)
        last = base + max(count, 1) - 1
        if kind in _CONTROLS:
            found.append(Batch(base, base, producer, True, _CONTROLS[kind], int(kind != "?")))
        elif kind != "_":
            found.append(Batch(base, last, producer, kind == ".", None, count))
        base = last + 1
    return found
