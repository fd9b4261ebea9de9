"""Files, functions and classes fit into a reader's head."""

import pytest

from tests.tidy.measures import LIMITS, excess, listed
from tests.tidy.sources import at, sources

FILE_LINES_MAX = 600


def test_files_are_short():
    """A module that does not fit on some screens is two modules."""
    lengths = {path: len(path.read_text().splitlines()) for path in sources()}
    assert [at(path, n) for path, n in lengths.items() if n > FILE_LINES_MAX] == []


@pytest.mark.parametrize("title", LIMITS)
def test_nothing_new_is_over_a_limit(title: str):
    """What is over a limit is in ratchet.toml with at least that number."""
    known = listed()[title]
    found = excess(LIMITS[title])
    assert {name: n for name, n in found.items() if n > known.get(name, 0)} == {}, (
        f"at most {LIMITS[title].most}: {LIMITS[title].reason}"
    )


@pytest.mark.parametrize("title", LIMITS)
def test_no_exception_is_left_that_is_not_needed(title: str):
    """An entry of ratchet.toml goes when the code is within the limit."""
    assert set(listed()[title]) - set(excess(LIMITS[title])) == set(), (
        "run `python -m tests.tidy.measures`"
    )


def test_exceptions_belong_to_limits():
    """A list of ratchet.toml that no limit reads excuses nothing."""
    assert set(listed()) == set(LIMITS)
