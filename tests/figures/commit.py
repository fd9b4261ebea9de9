"""The way of a commit, as a sequence of messages."""

from tests.figures.drawing import BLUE, GREEN, PALE, VIOLET, Box, Drawing, Point

LANES = (
    ("TransactionClient", BLUE),
    ("orders, payments", PALE),
    ("txn-requests", VIOLET),
    ("coordinator", GREEN),
    ("txn-log", VIOLET),
    ("txn-markers", VIOLET),
    ("Subscription", BLUE),
)
LANE_WIDTH = 132
FIRST = 80
TOP, STEP = 24, 50


def commit() -> str:
    """From the records of a transaction to the reader that delivers them."""
    height = 640
    drawing = Drawing(
        FIRST * 2 + LANE_WIDTH * (len(LANES) - 1), height, "The way of a commit through the topics"
    )
    for number, (name, fill) in enumerate(LANES):
        x = FIRST + LANE_WIDTH * number
        drawing.box(Box(x - 62, TOP, 124, 36), name, fill=fill, size=12.5)
        drawing.line([(x, TOP + 36), (x, height - 20)])
    steps = (
        (0, 1, "records with `txn`,\ndelivery reports back"),
        (0, 2, "End(commit, counts), Open for the next"),
        (2, 3, "batch of requests"),
        (3, 4, "entry: many records,\nepoch and serial"),
        (4, 3, "read back:\nCOMMITTING"),
        (3, 0, "answer by txn-responses: the commit is final"),
        (3, 5, "a marker for each partition written to"),
        (5, 3, "acknowledged"),
        (3, 4, "Ended,\nwith the next entry"),
        (5, 6, "markers: COMMIT"),
        (1, 6, "records, in offset order up to the first undecided one"),
    )
    y = TOP + 84
    for number, (source, to, text) in enumerate(steps, 1):
        begin, end = _at(source, y), _at(to, y)
        drawing.arrow([begin, end])
        lift = 12 if "\n" not in text else 20
        drawing.label(((begin[0] + end[0]) / 2, y - lift), text, size=11)
        drawing.number(begin, str(number))
        y += STEP
    return drawing.svg()


def _at(lane: int, y: float) -> Point:
    return FIRST + LANE_WIDTH * lane, y
