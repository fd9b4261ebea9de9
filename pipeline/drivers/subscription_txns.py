"""The transactions of records, as the read-committed machine wants them.

*Source*: protocols.md D1, D3. It runs for every record that a subscription reads.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter

from connectors.base import Record
from pipeline.core.read_committed.machine import MALFORMED
from schemas.errors import MalformedHeaderError
from schemas.headers import TXN, Headers, txn_header
from schemas.values import TXN_ID_BYTES

_HEADERS: Callable[[Record], Headers | None] = attrgetter("headers")
_SEVERAL = ("", None)


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
