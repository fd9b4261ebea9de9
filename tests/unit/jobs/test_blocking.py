"""What a blocking call says of its steps."""

from threading import Event

from stilltide.pipeline.jobs.blocking import SlowSteps

WAIT_S = 60.0


def test_a_step_is_said_once_it_has_taken_long():
    """Once, and a later one too; one that ends before is not said."""
    said: list[str] = []
    heard = Event()

    def say(line: str) -> None:
        said.append(line)
        heard.set()

    with SlowSteps(say, slow_s=0.01) as progress:
        for step in ("reading snapshots", "reading outcomes"):
            heard.clear()
            progress.step(step)
            assert heard.wait(WAIT_S)
        progress.done()
    with SlowSteps(say, slow_s=WAIT_S) as progress:
        progress.step("reading records")
    assert said == ["reading snapshots", "reading outcomes"]
