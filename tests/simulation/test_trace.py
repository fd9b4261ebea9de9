"""What is shown of a world."""

import re

from tests.simulation.drawing.draw import draw
from tests.simulation.trace import Event, page
from tests.simulation.world import run


def test_a_page_has_a_column_for_each_program_and_a_row_for_each_event():
    """Runs of one program share its column; what befalls a program is marked; text is escaped."""
    events = [
        Event(0.5, "client-0.1", "orders/0 b'<i>' is at 3"),
        Event(1.0, "client-0", "kill for 1.000 s"),
        Event(2.0, "a-worker-0.1", "starts"),
        Event(2.5, "client-0.2", "starts"),
    ]
    shown = page("Seed 7", events, ["lost write: <b>"])
    assert re.findall("<th>(.*?)</th>", shown) == ["s", "client-0", "a-worker-0"]
    rows = re.findall("<tr(.*?)><td>(.*?)</td>(.*)</tr>", shown)
    assert [at_s for _, at_s, _ in rows] == ["0.500000", "1.000000", "2.000000", "2.500000"]
    assert ["world" in it for it, _, _ in rows] == [False, True, False, False]
    assert [cells.count("<td>") for _, _, cells in rows] == [1, 1, 2, 1]
    assert "orders/0 b&#x27;&lt;i&gt;&#x27; is at 3" in shown
    assert "<li>lost write: &lt;b&gt;</li>" in shown


def test_a_traced_world_is_drawn_whole():
    """Every event of a world has its row."""
    result = run(draw(1, transactions=3), traced=True)
    assert page("1", result.trace, []).count("<tr ") == len(result.trace) > 100
