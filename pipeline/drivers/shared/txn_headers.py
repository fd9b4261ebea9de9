"""What a reader returns, as the read-committed machine takes it.

*Source*: protocols.md D1, D3. It runs for every record that is read by transactions.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import cast

from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.read_committed.machine import MALFORMED
from stilltide.schemas.errors import MalformedHeaderError
from stilltide.schemas.headers import TXN, Headers, txn_header
from stilltide.schemas.values import TXN_ID_BYTES

_HEADERS: Callable[[Record], Headers | None] = attrgetter("headers")
_SEVERAL = ("", None)
_SIZES = {TXN_ID_BYTES}


def txns_of(records: Iterable[Record]) -> Sequence[bytes | None]:
    """The transaction of each record as its machine wants it."""
    return txns_of_headers([*map(_HEADERS, records)])


def txns_of_headers(of_records: Sequence[Headers | None]) -> Sequence[bytes | None]:
    """The transactions of records with these headers."""
    # Most often each has one header, its transaction, which is cheaper to see than to find.
    lone = cast("Sequence[Sequence[tuple[str, bytes]]]", of_records)
    with suppress(TypeError, ValueError):  # no headers, several, or without a value
        txns = [txn for [(name, txn)] in lone if name == TXN]
        if len(txns) == len(lone) and set(map(len, txns)) == _SIZES:
            return txns
    return [None if headers is None else _txn_of(headers) for headers in of_records]


def _txn_of(headers: Headers) -> bytes | None:
    name, txn = headers[0] if len(headers) == 1 else _SEVERAL
    if name == TXN and txn is not None and len(txn) == TXN_ID_BYTES:
        return txn
    try:
        return txn_header(headers)
    except MalformedHeaderError:
        return MALFORMED
