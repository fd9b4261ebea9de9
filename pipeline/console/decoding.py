"""Bytes of keys, values and headers as text, JSON or hexadecimal, as the viewer has chosen; pure.

*Invariants*: nothing is guessed silently: what a cell cannot show in the chosen form it shows in
another one, and says so. A value that is null and one that is empty look different.
"""

import json

from stilltide.pipeline.console.views import Cell

AUTO, TEXT, JSON, HEX = "auto", "text", "JSON", "hex"
FORMS = (AUTO, TEXT, JSON, HEX)
"""What a viewer may choose."""

ROW_BYTES_MAX = 24
"""Bytes in hexadecimal that a row shows."""

_FRAME_BYTES = 5
"""A zero byte and the number of a schema begin what Confluent's serializers write."""

_HEX_LINE_BYTES = 16


def decoded(data: bytes | None, size: int, form: str = AUTO, *, is_whole: bool = False) -> Cell:
    """The bytes in a cell.

    Args:
        data: the bytes, or the first ones of them; None: null.
        size: number of all bytes.
        form: one of `FORMS`.
        is_whole: whether the cell has room for lines.
    """
    if data is None:
        return Cell("null", "soft")
    if not data:
        return Cell("empty", "soft")
    is_cut = size > len(data)
    notes = [f"the first {len(data):,} of {size:,} bytes"] if is_cut and is_whole else []
    if is_cut and not is_whole:
        notes = [f"{size:,} bytes"]
    kind = "lines" if is_whole else "code"
    text = None if form == HEX else _text(data, is_cut=is_cut)
    if form == JSON and text is not None:
        shown = None if is_cut else _json(text, is_whole=is_whole)
        if shown is None:
            notes.append("cut, so that it is no whole JSON" if is_cut else "no JSON")
        text = shown or text
    elif form == AUTO and is_whole and text is not None and not is_cut and text[:1] in {"{", "["}:
        text = _json(text, is_whole=True) or text
    if text is None and form == TEXT:
        text = data.decode(errors="replace")
        notes.append("with bytes that are no UTF-8")
    if text is None:
        notes = [*([] if is_cut else [f"{size:,} bytes"]), *notes]
        notes += ["no text"] if form != HEX else []
        notes += [_frame(data)] if _frame(data) else []
        more = " ..." if len(data) > ROW_BYTES_MAX else ""
        in_row = f"{data[:ROW_BYTES_MAX].hex(' ')}{more}"
        text, kind = (_dump(data), "dump") if is_whole else (in_row, "code")
    return Cell(text, kind, note=", ".join(notes))


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """The bytes as UTF-8, whose last character may be cut; None: they are something else."""
    for end in range(len(data), max(0, len(data) - 4 * is_cut) - 1, -1):
        try:
            return data[:end].decode()
        except UnicodeDecodeError as error:
            if error.start < len(data) - 4:
                return None
    return None


def _json(text: str, *, is_whole: bool) -> str | None:
    """The same JSON with the usual spaces, or on lines; None: it is no JSON."""
    try:
        value = json.loads(text)
        return json.dumps(value, ensure_ascii=False, indent=2 if is_whole else None)
    except (ValueError, RecursionError):
        return None


def _frame(data: bytes) -> str:
    """What the first bytes say, if they are those of Confluent's serializers."""
    if len(data) < _FRAME_BYTES or data[0]:
        return ""
    return f"perhaps of schema {int.from_bytes(data[1:_FRAME_BYTES])}"


def _dump(data: bytes) -> str:
    """Lines of a place, sixteen bytes, and what of them is ASCII."""
    lines: list[str] = []
    for place in range(0, len(data), _HEX_LINE_BYTES):
        part = data[place : place + _HEX_LINE_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)  # noqa: PLR2004 - ASCII
        lines.append(f"{place:06x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)
