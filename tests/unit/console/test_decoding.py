"""Bytes as text, JSON or hexadecimal."""

import pytest

from stilltide.pipeline.console.decoding import AUTO, HEX, JSON, TEXT, decoded
from tests.support.console.answers import BINARY

ORDER = b'{"b":1,"a":"gr\xc3\xbcn"}'
FRAMED = b"\x00\x00\x00\x00\x07\xff\x80"
CUT = "cut, so that it is no whole JSON"


@pytest.mark.parametrize(
    ("data", "size", "form", "shown_text", "note"),
    [
        (None, 0, AUTO, "null", ""),
        (None, 0, HEX, "null", ""),
        (b"", 0, AUTO, "empty", ""),
        ("gr\u00fcn".encode(), 5, AUTO, "gr\u00fcn", ""),
        ("gr\u00fcn".encode()[:3], 500, AUTO, "gr", "500 bytes"),
        (BINARY[:4], 4, AUTO, "xyz{", ""),
        (b"\x00\xff\xfe", 3, AUTO, "00 ff fe", "3 bytes, no text"),
        (b"\xff" * 200, 900, AUTO, "ff " * 24 + "...", "900 bytes, no text"),
        (ORDER, 17, AUTO, '{"b":1,"a":"gr\u00fcn"}', ""),
        (ORDER, 17, JSON, '{"b": 1, "a": "gr\u00fcn"}', ""),
        (b"shipped", 7, JSON, "shipped", "no JSON"),
        (b"NaN]", 4, JSON, "NaN]", "no JSON"),
        (b"[" * 100_000, 100_000, JSON, "[" * 100_000, "no JSON"),
        (b'{"a"', 900, JSON, '{"a"', f"900 bytes, {CUT}"),
        (b"\xff\xfe", 2, JSON, "ff fe", "2 bytes, no text"),
        (b"ab\xff", 3, TEXT, "ab\ufffd", "with bytes that are no UTF-8"),
        (b"ab", 2, HEX, "61 62", "2 bytes"),
        (FRAMED, 7, AUTO, "00 00 00 00 07 ff 80", "7 bytes, no text, perhaps of schema 7"),
    ],
)
def test_bytes_in_a_row(data: bytes | None, size: int, form: str, shown_text: str, note: str):
    """What cannot be shown in the chosen form is shown in another one, and that is said."""
    cell = decoded(data, size, form)
    assert (cell.text, cell.note) == (shown_text, note)


@pytest.mark.parametrize(
    ("data", "size", "form", "shown_text", "note"),
    [
        (ORDER, 17, AUTO, '{\n  "b": 1,\n  "a": "gr\u00fcn"\n}', ""),
        (b"[1", 2, AUTO, "[1", ""),
        (b"line\nline", 9, AUTO, "line\nline", ""),
        (b"abc", 900, AUTO, "abc", "the first 3 of 900 bytes"),
        (
            bytes(range(60, 80)),
            20,
            HEX,
            (
                "000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK\n"
                "000010  4c 4d 4e 4f                                      LMNO"
            ),
            "20 bytes",
        ),
    ],
)
def test_bytes_of_one_record(data: bytes, size: int, form: str, shown_text: str, note: str):
    """JSON has lines, hexadecimal has places and letters."""
    cell = decoded(data, size, form, is_whole=True)
    assert (cell.text, cell.note) == (shown_text, note)
    assert cell.kind == ("dump" if form == HEX else "lines")
