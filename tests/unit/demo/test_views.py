"""What the producer, the consumer and Spark saw, side by side: any difference is found."""

from collections.abc import Callable

import pytest

from stilltide.pipeline.demo.views import View, differences, rows
from stilltide.schemas.values import TopicPartition

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 2)


def view(name: str) -> View:
    """What one that sees right saw."""
    made = View(name, committed=7, aborted=2)
    for data, visible, hidden, digest in ((ORDERS, 10, 3, 111), (PAYMENTS, 5, 0, 222)):
        partition = made.partition(data)
        partition.visible, partition.hidden, partition.digest = visible, hidden, digest
    return made


def views() -> list[View]:
    """Three that agree."""
    return [view(name) for name in ("producer", "consumer", "spark")]


def test_views_that_agree_have_no_difference():
    """A partition that nobody saw anything of does not matter."""
    agreeing = views()
    agreeing[1].partition(TopicPartition("orders", 1))
    assert differences(agreeing) == []


def test_what_one_cannot_tell_is_no_difference():
    """A reader does not know how many have aborted; the others still have to agree."""
    agreeing = views()
    agreeing[1].aborted = None
    assert differences(agreeing) == []
    (row,) = [it for it in rows(agreeing, ["orders"]) if it["what"] == "aborted"]
    assert (row["consumer"], row["equal"]) == (None, "yes")
    agreeing[2].aborted = 3
    (row,) = [it for it in rows(agreeing, ["orders"]) if it["what"] == "aborted"]
    assert row["equal"] == "NO"


def _commit(it: View) -> None:
    it.committed += 1


def _abort(it: View) -> None:
    it.aborted = 1


def _show(it: View) -> None:
    it.partition(ORDERS).visible += 1


def _hide(it: View) -> None:
    it.partition(PAYMENTS).hidden += 1


def _change(it: View) -> None:
    it.partition(PAYMENTS).digest += 1


def _add(it: View) -> None:
    it.partition(TopicPartition("orders", 1)).visible = 1


def _lose(it: View) -> None:
    del it.partitions[PAYMENTS]


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(
    ("plant", "where"),
    [
        (_commit, "transactions committed"),
        (_abort, "transactions aborted"),
        (_show, "orders/0 visible"),
        (_hide, "payments/2 hidden"),
        (_change, "payments/2 digest"),
        (_add, "orders/1 visible"),
        (_lose, "payments/2 visible"),
    ],
)
def test_a_planted_difference_is_found(which: int, plant: Callable[[View], None], where: str):
    """The one of three views that differs is named, whichever count differs."""
    differing = views()
    plant(differing[which])
    found = differences(differing)
    assert any(it.startswith(f"{where}: ") for it in found)
    assert all(name in "".join(found) for name in ("producer", differing[max(which, 1)].name))


def test_the_table_marks_what_differs():
    """One row for each count and digest, one column for each view; `NO` where they differ."""
    differing = views()
    _change(differing[2])
    table = rows(differing, ["orders", "payments"])
    assert [row["equal"] for row in table] == ["yes"] * 9 + ["NO"]
    assert table[2] == {
        "of": "orders",
        "what": "records written",
        "producer": 13,
        "consumer": 13,
        "spark": 13,
        "equal": "yes",
    }
