"""Tries of an owner that ends by errors (B8)."""

import asyncio

import pytest

from stilltide.connectors.errors import RetriableError
from stilltide.pipeline.drivers.service import ended
from stilltide.pipeline.drivers.service.ended import (
    REPORTED_MAX,
    WHY_CHARS,
    OwnerEnd,
    Tries,
    reported_ends,
)
from stilltide.schemas.errors import DecodeError
from tests.support.coordinator.worker_memory import until

DAMAGE = DecodeError("not a batch", topic="t", partition=2, offset=7)


async def test_an_owner_is_tried_again_at_growing_distances(monkeypatch: pytest.MonkeyPatch):
    """Each wait is twice the last one, up to a limit; the end is told until the next try."""
    monkeypatch.setattr(ended, "AGAIN_S_MAX", 0.004)
    ends: list[OwnerEnd] = []
    seen: list[OwnerEnd | None] = []
    tries = Tries(ends.append, again_s=0.001)

    async def own() -> None:
        seen.append(tries.end)
        if len(seen) < 6:
            raise DAMAGE

    await tries.run(own)
    assert seen == [None] * 6
    assert {end.ended_s for end in ends} == {ends[0].ended_s}
    assert tries.end is None


async def test_an_assignment_ends_the_wait():
    """A partition that is assigned again is tried at once."""
    ends: list[OwnerEnd] = []
    tries = Tries(ends.append, again_s=3600)

    async def own() -> None:
        raise DAMAGE

    running = asyncio.create_task(tries.run(own))
    for count in (1, 2, 3):
        await until(lambda it=count: len(ends) == it)
        assert tries.end is ends[-1]
        tries.at_once()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


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
