"""Kinds of records that programs other than Stilltide write into its topics, by mistake or not.

*Invariants*: the list is a product: shapes of the value, keys, and headers. None of them is an
effective record of the topic: damage of those is another matter (B10).
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from stilltide.schemas.framing import encode_batch
from stilltide.schemas.headers import EntryStamp, Headers
from stilltide.schemas.topics import SETTINGS, TXN_MARKERS, TXN_REQUESTS
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.intruders.samples import SAMPLES
from tests.support.schemas.wire import too_deep

NOWHERE = TopicPartition("nowhere", 0)
"""A data partition that does not exist."""

HUGE = 2**63 - 1
LARGE = 1_040_000
"""Almost the largest value that a topic takes whose limit is the default of a broker."""

LATER = b"\x0e\x01\x00\x02later"
"""A framed value of a later version."""

KEYS = {
    "no key": None,
    "empty key": b"",
    "foreign key": b"\xff\x00k" * 9,
    "long key": b"\x1b[2J" * 100,
}
HEADERS: dict[str, Headers | None] = {
    "no headers": None,
    "stale stamp": [*EntryStamp(Offset(1 << 40), 1).to_headers(), ("txn", bytes(16))],
}


class Kind(NamedTuple):
    """One kind of record.

    Attributes:
        name: its name.
        key: key of the record.
        value: value of the record.
        headers: headers of the record.
    """

    name: str
    key: bytes | None
    value: bytes | None
    headers: Headers | None


def _values(topic: str) -> Iterator[tuple[str, bytes | None]]:
    """What the value may be, under a key that is none of the topic's."""
    _, valid = SAMPLES[topic](NOWHERE, 7)
    yield from {
        "null": None,
        "empty": b"",
        "one byte": b"x",
        "zeros": bytes(64),
        "garbage": bytes(range(255, 191, -1)),
        "text": b'{"order": 7, "state": "\x1b[2J../\\u0000"}\n',
        "torn": valid[: len(valid) // 2],
        "short of a byte": valid[:-1],
        "a byte too many": valid + b"\xff",
        "torn batch": encode_batch([valid, valid])[:-1],
        "later version": LATER,
        "too deep": too_deep(valid),
        "a request": SAMPLES[TXN_REQUESTS](NOWHERE, 7)[1],
        "a marker": SAMPLES[TXN_MARKERS](NOWHERE, 7)[1],
        "a setting": SAMPLES[SETTINGS](NOWHERE, 7)[1],
    }.items()


def _whole(topic: str) -> Iterator[Kind]:
    """Valid records with names and numbers that cannot be, and a large one."""
    make = SAMPLES[topic]
    data = {
        "path": TopicPartition("../../etc/passwd", 0),
        "controls": TopicPartition("a\x1b[2J\r\n\x00b", 0),
        "long name": TopicPartition("n" * 2000, 0),
        "high partition": TopicPartition("nowhere", 2**32 - 1),
    }
    for name, place in data.items():
        yield Kind(name, *make(place, 7), None)
    yield Kind("huge number", *make(TopicPartition("..", 2**32 - 1), HUGE), None)
    yield Kind("1 MiB", KEYS["foreign key"], b"\x0f" * LARGE, None)


def kinds(topic: str, *, compacted: bool) -> list[Kind]:
    """Every kind of record for a topic; a broker refuses one without a key in a compacted topic."""
    made = [
        Kind(f"{name}, {key}, {headers}", KEYS[key], value, HEADERS[headers])
        for (name, value), key, headers in product(_values(topic), KEYS, HEADERS)
        if not (compacted and KEYS[key] is None)
    ]
    return [*made, *_whole(topic)]
