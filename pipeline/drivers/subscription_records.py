"""What a reader returns, as the read-committed machine takes it.

*Source*: protocols.md D1, D3. It runs for every record that a subscription reads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from connectors.base import EndReached, Record
from pipeline.core.read_committed.machine import MALFORMED
from schemas.errors import MalformedHeaderError
from schemas.headers import TXN, Headers, txn_header
from schemas.values import TXN_ID_BYTES, TopicPartition

_HEADERS: Callable[[Record], Headers | None] = attrgetter("headers")
_SEVERAL = ("", None)
_TOPIC, _PARTITION = itemgetter(0), itemgetter(1)
_KIND_AND_PLACE = attrgetter("__class__", "topic", "partition")


class Run(NamedTuple):
    """Consecutive items of one partition: either records or ends."""

    data: TopicPartition
    records: Sequence[Record] = ()
    ends: Sequence[EndReached] = ()


def runs(items: Sequence[Record | EndReached]) -> Iterator[Run]:
    """The runs that items consist of, in their order."""
    # Most often all of them are one, which is cheaper to see than to find.
    if all(len(set(map(field, items))) == 1 for field in (type, _TOPIC, _PARTITION)):
        yield _run(items)
    else:
        for _, run in groupby(items, _KIND_AND_PLACE):
            yield _run(list(run))


def _run(items: Sequence[Any]) -> Run:
    data = TopicPartition(*items[0][:2])
    return Run(data, ends=items) if isinstance(items[0], EndReached) else Run(data, items)


def txns_of(records: Iterable[Record]) -> list[bytes | None]:
    """The transaction of each record as its machine wants it."""
    return txns_of_headers(map(_HEADERS, records))


def txns_of_headers(of_records: Iterable[Headers | None]) -> list[bytes | None]:
    """The transactions of records with these headers."""
    txns: list[bytes | None] = []
    for headers in of_records:
        txn = None
        if headers is not None:
            name, txn = headers[0] if len(headers) == 1 else _SEVERAL
            # The common case goes without looking for repeats.
            if name != TXN or txn is None or len(txn) != TXN_ID_BYTES:
                txn = _txn_of(headers)
        txns.append(txn)
    return txns


def _txn_of(headers: Headers) -> bytes | None:
    try:
        return txn_header(headers)
    except MalformedHeaderError:
        return MALFORMED
