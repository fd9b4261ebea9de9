"""Tables in the width of a terminal."""

from collections.abc import Sequence

import pytest
from rich.console import Console

from stilltide.pipeline.cli.common.tables import Form, form_for, table_of

WIDTH = 80
HEADS = ["topic", "partition", "read_again_others", "min.insync.replicas"]
ROWS = [["orders", "0", "17", "1"], ["orders", "1", "170000", "1"]]


def drawn(heads: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[str]:
    """The lines of a table, without spaces at their ends."""
    console = Console(width=width, color_system=None)
    form = form_for(heads, cells, width)
    with console.capture() as captured:
        console.print(table_of(heads, cells, [False, True, True, True], form, None))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_table_that_fits_has_lines():
    """Each row is one line."""
    assert form_for(HEADS, ROWS, WIDTH) is Form.BOXED
    assert sum("orders" in line for line in drawn(HEADS, ROWS, WIDTH)) == 2


def test_a_wider_table_loses_its_lines_and_wraps_its_heads():
    """No word of a head or cell is broken."""
    assert form_for(HEADS, ROWS, 44) is Form.PLAIN
    lines = drawn(HEADS, ROWS, 44)
    assert all(len(line) <= 44 for line in lines)
    assert lines[-1].split() == ["orders", "1", "170000", "1"]
    words = " ".join(lines[:-2]).split()
    assert sorted(words) == sorted(
        ["topic", "partition", "read", "again", "others", "min.", "insync.", "replicas"]
    )


def test_a_text_of_several_words_is_wrapped_at_words():
    """As long as it keeps some columns."""
    why = "the link from b does not run, so that nothing of it is known here for a while"
    cells = [["orders", "0", "1", why]]
    lines = drawn(["topic", "partition", "again", "why"], cells, 60)
    assert form_for(["topic", "partition", "again", "why"], cells, 60) is Form.PLAIN
    assert " ".join(" ".join(lines).split()).endswith("for a while")
    assert (
        not set(" ".join(lines).split())
        - set(why.split())
        - {
            "topic",
            "partition",
            "again",
            "why",
            "orders",
            "0",
            "1",
        }
    )


def test_a_few_rows_of_many_columns_are_turned():
    """The heads are the first column."""
    heads = [f"column_number_{it}" for it in range(4)]
    cells = [["1234567890"] * 4, ["x"] * 4]
    assert form_for(heads, cells, 45) is Form.TURNED
    lines = drawn(heads, cells, 45)
    assert any("column_number_1" in line and "1234567890" in line and "x" in line for line in lines)


def test_what_fits_in_no_table_has_a_line_for_each_value():
    """With an empty line between rows, and nothing folded that fits."""
    lines = drawn(HEADS, [["a" * 30, "0", "17", "1"], ["b" * 30, "1", "2", "1"]], 55)
    assert lines[0].split() == ["topic", "a" * 30]
    assert "" in lines
    assert len(lines) == 9


@pytest.mark.parametrize("name", ["[/b]", "[red]x"])
def test_names_are_no_markup(name: str):
    """In every form, also as a head."""
    for width in (200, 44, 20):
        text = " ".join(drawn([name, *HEADS[1:]], [[name, "0", "1", "1"]] * 2, width))
        assert name in text
