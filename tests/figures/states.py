"""The states of a transaction as its coordinator's log gives them (rules C)."""

from tests.figures.drawing import BLUE, GREEN, PALE, ROSE, Box, Drawing


def transaction_states() -> str:
    """OPEN, COMMITTING, ABORTING, and the end that a coordinator does not keep."""
    drawing = Drawing(900, 400, "The states of a transaction")
    start = (60, 190)
    opened = drawing.box(
        Box(190, 150, 150, 80), "OPEN", ["partitions can be", "registered"], fill=BLUE
    )
    committing = drawing.box(
        Box(470, 40, 180, 80),
        "COMMITTING",
        ["markers go to the", "partitions written to"],
        fill=GREEN,
    )
    aborting = drawing.box(
        Box(470, 260, 180, 80),
        "ABORTING",
        ["end offsets are read; markers", "go to all registered partitions"],
        fill=ROSE,
        size=12,
    )
    ended = drawing.box(Box(760, 150, 110, 80), "ended", ["not held", "any more"], fill=PALE)
    drawing.dot(start)
    drawing.arrow([start, opened.left()], "Open")
    up, down = opened.top(0.7), opened.bottom(0.7)
    drawing.arrow(
        [up, (up[0], 80), committing.left()], "End(commit),\ncounts are valid", at=(345, 60)
    )
    drawing.arrow([down, (down[0], 300), aborting.left()], "End(abort)\nor TimedOut", at=(365, 278))
    drawing.arrow([opened.right(), ended.left()], "Release: nothing was written, no markers")
    top, bottom = ended.top(), ended.bottom()
    drawing.arrow(
        [committing.right(), (top[0], 80), top],
        "Ended: all markers written,\nsubscriptions settled",
        at=(775, 60),
    )
    drawing.arrow(
        [aborting.right(), (bottom[0], 300), bottom],
        "Ended: all markers written,\nsubscriptions settled",
        at=(775, 324),
    )
    drawing.text(
        (30, 376),
        "Every change is a record of txn-log and takes effect when the coordinator reads it back. "
        "A repeated End has the same answer.",
        size=12,
    )
    return drawing.svg()
