"""Finds the transaction of each record, in the form that the read-committed machine takes.

*Source*: docs/protocols D1, D3. This code runs for every record of a read-committed reader, so it
is tuned for speed.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import cast

from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.read_committed.machine import MALFORMED
from stilltide.schemas.errors import MalformedHeaderError
from stilltide.schemas.headers import TXN, Headers, txn_header
from stilltide.schemas.values import TXN_ID_BYTES

_HEADERS: Callable[[Record], Headers | None] = attrgetter("headers")
_SEVERAL = ("", None)
_SIZES = {TXN_ID_BYTES}


def txns_of(records: Iterable[Record]) -> Sequence[bytes | None]:
    """D3: the transaction of each record; None: a plain record; `MALFORMED`: an invalid header."""
    return txns_of_headers([*map(_HEADERS, records)])


def txns_of_headers(of_records: Sequence[Headers | None]) -> Sequence[bytes | None]:
    """The transaction ids of records with these headers, as `txns_of`."""
    # Most often `txn` is the only header of every record, and no search among headers is needed.
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
