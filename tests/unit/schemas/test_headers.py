"""Headers of log entries (A, B2) and of user records (D)."""

import pytest
from hypothesis import given

from stilltide.schemas.errors import DecodeError, MalformedHeaderError
from stilltide.schemas.headers import (
    EntryStamp,
    Headers,
    entry_stamp,
    is_writable,
    txn_header,
    writable,
)
from stilltide.schemas.values import Offset
from tests.support.schemas.wire import ROUND_TRIPS, U64

EPOCH = ("epoch", bytes.fromhex("0000000000000102"))
SERIAL = ("serial", bytes.fromhex("0000000000000001"))
TXN = ("txn", bytes(range(16)))


def test_entry_header_bytes():
    """A: epoch and serial, 8 bytes each, big-endian."""
    assert EntryStamp(Offset(258), 1).to_headers() == [EPOCH, SERIAL]


@ROUND_TRIPS
@given(U64, U64)
def test_every_stamp_is_read_back(epoch: int, serial: int):
    """Encoding loses nothing of a stamp."""
    stamp = EntryStamp(Offset(epoch), serial)
    assert entry_stamp(stamp.to_headers()) == stamp


@pytest.mark.parametrize("headers", [None, [], [("trace", b"1")]], ids=["none", "empty", "other"])
def test_an_entry_without_stamp_is_a_fence(headers: Headers | None):
    """B1: a fence has no writer yet; headers of others do not make it an entry."""
    assert entry_stamp(headers) is None


def test_other_headers_do_not_disturb_a_stamp():
    """A: tracing tools may add headers of their own, anywhere."""
    headers = [("trace", None), SERIAL, ("trace", b"1"), EPOCH]
    assert entry_stamp(headers) == EntryStamp(Offset(258), 1)


@pytest.mark.parametrize(
    "headers",
    [
        [EPOCH],
        [SERIAL],
        [EPOCH, EPOCH],
        [EPOCH, SERIAL, SERIAL],
        [("epoch", None), SERIAL],
        [EPOCH, ("serial", b"\x01")],
        [EPOCH, ("serial", bytes(9))],
    ],
    ids=["epoch alone", "serial alone", "twice", "repeated", "null", "short", "long"],
)
def test_half_a_stamp_is_an_error(headers: Headers):
    """B2: an entry that claims a writer but not which one is refused, not taken for a fence."""
    with pytest.raises(DecodeError):
        entry_stamp(headers)


def test_txn_header_is_found_among_others():
    """D: the header's 16 bytes are the transaction; its place does not matter."""
    assert txn_header([("a", b"1"), TXN, ("b", None)]) == TXN[1]


@pytest.mark.parametrize(
    "headers",
    [None, [], [("Txn", TXN[1])], [("txn-id", TXN[1])]],
    ids=["none", "empty", "case", "name"],
)
def test_a_record_without_txn_header_is_plain(headers: Headers | None):
    """D3: only a header named exactly `txn` makes a record part of a transaction."""
    assert txn_header(headers) is None


@pytest.mark.parametrize(
    "headers",
    [[("txn", None)], [("txn", b"")], [("txn", bytes(15))], [("txn", bytes(17))], [TXN, TXN]],
    ids=["null", "empty", "short", "long", "twice"],
)
def test_a_malformed_txn_header_is_an_error(headers: Headers):
    """D: such a record is reported and withheld, never taken for a plain one."""
    with pytest.raises(MalformedHeaderError) as caught:
        txn_header(headers)
    assert "exactly one `txn` header of 16 bytes" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("txn", "txn"),
        ("", ""),
        ("straße", "straße"),
        ("\U0001f600", "\U0001f600"),
        ("stra\udcdfe", r"stra\xdfe"),
        ("txn\0", r"txn\x00"),
        ("\udced\udca0\udc80", r"\xed\xa0\x80"),
    ],
)
def test_a_name_that_cannot_be_written_is_spelt_out(name: str, written: str):
    """D9: what Kafka's client would write as another name is written with its bytes in hex."""
    assert writable(name) == written
    assert is_writable(name) == (name == written)
