"""C17: what keeps a worker from its work is counted, said, and forgotten when it is over."""

import asyncio

import pytest
from structlog.testing import capture_logs

from stilltide.connectors.errors import NotAuthorizedError, RetriableError
from stilltide.connectors.kafka.authorization import Caller, not_allowed, on_topic
from stilltide.pipeline.drivers.service import hindrances as module
from stilltide.pipeline.drivers.service.hindrances import Hindrances, RightsWatch
from stilltide.schemas.rights import Operation

REFUSED = not_allowed(
    Caller("host:9092", "User:w"), "cannot write", on_topic(Operation.WRITE, "t"), ""
)


class Asker:
    """Tells of a missing right at the second look; ends the watch at the third."""

    def __init__(self) -> None:
        self.looks = 0
        self.closed = False

    async def missing(self, *_: object) -> list[NotAuthorizedError]:
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
