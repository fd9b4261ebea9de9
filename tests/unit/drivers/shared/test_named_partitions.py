"""Topics are asked for in parts (C18)."""

from stilltide.pipeline.drivers.shared.named_partitions import NAMES_PER_CALL, questions


def test_each_name_is_asked_for_once():
    """In order, in parts of at most `NAMES_PER_CALL`; no name makes no question."""
    names = [f"t{number}" for number in range(2 * NAMES_PER_CALL + 1)]
    parts = list(questions(names))
    assert [len(it) for it in parts] == [NAMES_PER_CALL, NAMES_PER_CALL, 1]
    assert [name for part in parts for name in part] == names
    assert list(questions([])) == []
