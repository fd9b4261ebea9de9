"""Text of strangers becomes printable, and stays readable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stilltide.schemas.errors import StilltideError
from stilltide.schemas.printable import printable, printable_lines, shortened
from tests.support.hostile import HOSTILE, is_harmless


@given(st.text(st.characters()))
def test_every_text_becomes_printable(text: str):
    """Whatever characters there are; a second time changes nothing."""
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    assert is_harmless(printable_lines(text))
    assert len(shortened(text, 20)) <= 20


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders-1", "orders-1"),
        ("Zahlungen \u00fc \u05e9\u05dc\u05d5\u05dd \u6ce8\u6587", None),
        ("a\x1b[2J", r"a\x1b[2J"),
        ("a\nb\tc", r"a\nb\tc"),
        ("a\u202eb", r"a\u202eb"),
        ("a\udcffb", r"a\udcffb"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_what_prints_is_not_changed(text: str, shown: str | None):
    """Letters of all scripts stay; what does not print is shown as its escape."""
    assert printable(text) == (text if shown is None else shown)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_the_text_of_an_error_is_harmless(name: str):
    """Also in the traceback of an application; only a detail has line breaks."""
    error = StilltideError(name, hint=name, topic=name, partition=1)
    assert is_harmless(str(error))
    first, *others = str(error).splitlines()
    assert first.isprintable()
    assert others[0].startswith("  hint: ")
    assert "line 1\n" in str(StilltideError("p", detail="line 1\nline 2"))
