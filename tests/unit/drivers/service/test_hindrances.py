"""C17: what keeps a worker from its work is counted, said, and forgotten when it is over."""

import asyncio

import pytest
from structlog.testing import capture_logs

from stilltide.connectors.errors import (
    NotAuthorizedError,
    RecordRefusedError,
    RetriableError,
)
from stilltide.connectors.kafka.errors import Caller, not_allowed, on_topic
from stilltide.pipeline.drivers.service import hindrances as module
from stilltide.pipeline.drivers.service.hindrances import Hindrances, RightsWatch
from stilltide.schemas.rights import Operation

REFUSED = not_allowed(
    Caller("host:9092", "User:w"), "cannot write", on_topic(Operation.WRITE, "t"), ""
)
TOO_LARGE = RecordRefusedError("too large")
TOO_LARGE.reason = "MSG_SIZE_TOO_LARGE"


class Asker:
    """Tells of a missing right at the second look; ends the watch at the third."""

    def __init__(self) -> None:
        self.looks = 0
        self.closed = False

    async def missing(self, *_: object, **__: object) -> list[NotAuthorizedError]:
        """The rights that are missing."""
        self.looks += 1
        if self.looks == 2:
            raise RetriableError("away")
        if self.looks == 4:
            raise asyncio.CancelledError
        return [REFUSED] if self.looks == 3 else []

    async def close(self) -> None:
        """Notes the call."""
        self.closed = True


async def test_a_hindrance_ends_with_the_next_success():
    """It is named with operation, resource and principal; other work does not end it."""
    one = Hindrances()
    assert one.finding().passed
    one.failed("answers", REFUSED)
    one.failed("answers", REFUSED)
    one.done("end offsets")
    assert one.finding() == (
        False,
        "answers: cannot write: Write on topic t is not allowed to User:w",
    )
    assert one.failures["answers", "NotAuthorizedError"] == 2
    one.done("answers")
    assert one.finding().passed


async def test_work_that_is_not_tried_any_more_hinders_nobody(monkeypatch: pytest.MonkeyPatch):
    """Else a worker that nobody asks would never be ready again."""
    monkeypatch.setattr(module, "FORGOTTEN_S", -1)
    one = Hindrances()
    one.failed("answers", REFUSED)
    assert one.finding().passed


async def test_a_single_failure_hinders_nobody(monkeypatch: pytest.MonkeyPatch):
    """It may be the fault of one record; a second one without a success between them is not."""
    monkeypatch.setattr(module, "HINDERED_AFTER_S", 0)
    one = Hindrances()
    work = one.work("entries", "t/0")
    for _ in range(3):
        one.failed_at(work, TOO_LARGE)
        assert one.finding().passed
        assert one.why("t/0") == ""
        work.begun(0)
        work.succeeded(0)
    one.failed_at(work, TOO_LARGE)
    one.failed_at(work, TOO_LARGE)
    assert one.finding() == (False, "entries of t/0: too large (MSG_SIZE_TOO_LARGE)")
    assert one.why("t/0") == "entries of t/0: too large (MSG_SIZE_TOO_LARGE)"
    assert one.why("t/1") == ""
    assert one.failures["entries", "MSG_SIZE_TOO_LARGE"] == 5


async def test_work_of_several_doers_at_one_place_is_kept_apart(monkeypatch: pytest.MonkeyPatch):
    """Else the success of one would hide that the other one fails."""
    monkeypatch.setattr(module, "HINDERED_AFTER_S", 0)
    one = Hindrances()
    a, b = (one.work("links", "t/0", f"the link from {it}") for it in "ab")
    one.failed_at(a, TOO_LARGE)
    one.failed_at(a, TOO_LARGE)
    b.begun(0)
    b.succeeded(0)
    said = "links of t/0 by the link from a: too large (MSG_SIZE_TOO_LARGE)"
    assert one.finding() == (False, said)
    (told,) = one.reported(0)
    assert (told.name, told.why) == ("links of t/0 by the link from a", said)


async def test_operators_are_told_of_missing_rights():
    """As `/readyz` is, with the next step, and since when the right is missing."""
    one = Hindrances()
    one.rights([REFUSED])
    (told,) = one.reported(10**12)
    one.rights([REFUSED])
    assert (told.kind, told.name, told.why) == ("hindered", "rights", REFUSED.primary)
    assert "stilltide acl print" in told.hint
    loop_ms = asyncio.get_running_loop().time() * 1000
    assert one.reported(round(loop_ms))[0].ended_ms <= loop_ms + 1
    one.rights([])
    assert one.reported(0) == ()


async def test_a_hindrance_is_logged_once_in_a_period(monkeypatch: pytest.MonkeyPatch):
    """However often it happens; each kind of work has its own line."""
    one = Hindrances()
    with capture_logs() as said:
        for _ in range(3):
            one.failed("answers", REFUSED)
            one.rights([REFUSED])
    assert [it["operation"] for it in said] == ["Write", "Write"]
    monkeypatch.setattr(one._logged, "_again_s", 0)
    with capture_logs() as said:
        one.failed("answers", REFUSED)
    assert len(said) == 1


async def test_the_watch_keeps_the_last_answer():
    """A cluster that is away says nothing about rights."""
    asker, one = Asker(), Hindrances()
    watch = RightsWatch(asker, one, ["t"], "g", look_s=0)
    await asyncio.gather(watch.run(), return_exceptions=True)
    assert asker.closed
    assert one.missing == [REFUSED]
    assert one.failures["rights", "NotAuthorizedError"] == 1
    assert "Write on topic t" in one.finding().text
