"""The search for seeds that notice a loss, and the table of what it finds."""

from pathlib import Path

from tests.simulation.ablations import ABLATIONS
from tests.simulation.losses.ablation import Ablation, none
from tests.simulation.losses.table import BEGIN, END, Noticed, search, table, write


def _shown(seed: int, rule: str) -> tuple[str, ...]:
    """Seeds from 14 on show the loss of A1; nothing shows that of A2."""
    return ("lost write: 1",) if rule == "A1" and seed >= 14 else ()


def test_the_first_seed_that_shows_a_loss_is_counted_from_the_first_seed_tried():
    """The search tries more and more seeds, and tells how many it took."""
    found = dict(search(_shown, ["A1", "A2"], range(5, 25), jobs=1))
    assert found == {"A1": Noticed(10, "lost write: 1"), "A2": None}


def test_the_table_takes_the_place_of_the_last_one(tmp_path: Path):
    """What stands around the marker comments of the page stays."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    rules = [
        Ablation("A1", "one", Path, "name", none),
        Ablation("A2", "two", Path, "name", none, "another rule covers it", tests="tests/a"),
    ]
    write(table(rules, {"A1": Noticed(10, "lost write: 1"), "A2": None}, 20, ["A2"]), page)
    lines = page.read_text().splitlines()
    assert lines[:2] == ["before", BEGIN]
    assert lines[-2:] == [END, "after"]
    assert "| A1 | one | 10 | lost write |" in lines
    assert "| A2 | two | not by 20 | nothing: another rule covers it; tests/a fails |" in lines


def test_each_rule_is_switched_off_under_a_name_of_its_own():
    """The list has at least forty rules, each once, and each check is there."""
    assert len({it.rule for it in ABLATIONS}) == len(ABLATIONS) >= 40
    assert all(hasattr(it.owner, it.name) for it in ABLATIONS)
