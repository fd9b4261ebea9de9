"""Why an owner does not run (B8)."""

import asyncio

import pytest

from stilltide.connectors.errors import RetriableError
from stilltide.pipeline.drivers.service.ended import (
    REPORTED_MAX,
    WHY_CHARS,
    OwnerEnd,
    reported_ends,
)
from stilltide.schemas.errors import DecodeError

DAMAGE = DecodeError("not a batch", topic="t", partition=2, offset=7)


async def test_an_end_names_place_and_cause():
    """On one line, with the time of the next try."""
    end = OwnerEnd(DAMAGE, 0.0, 60.0)
    assert end.place == ("t", "2", "7")
    assert end.text(20.0) == "t/2@7: not a batch (tried again in 40 s)"
    bug = OwnerEnd(ValueError("no"), 0.0, 60.0)
    assert bug.place == ("", "", "")
    assert bug.text(90.0) == "ValueError: no (tried again in 0 s)"


async def test_ends_are_reported_with_time_cause_and_hint():
    """The time is that of a wall clock; of many ends the first ones are reported, cut to size."""
    now_s = asyncio.get_running_loop().time()
    error = RetriableError("x" * 2 * WHY_CHARS, hint="wait", topic="orders", partition=0)
    end = OwnerEnd(error, ended_s=now_s - 5, again_s=now_s + 40)
    many = dict.fromkeys(map(str, range(2 * REPORTED_MAX)), end)
    found = reported_ends({"links": {"b": end}, "publish": many}, 9000)
    assert len(found) == REPORTED_MAX
    first = found[0]
    assert (first.kind, first.name, first.hint) == ("links", "b", "wait")
    assert first.ended_ms == pytest.approx(4000, abs=2000)
    assert first.why.startswith("orders/0: xxx")
    assert len(first.why) == WHY_CHARS
