"""The paths through the system, each as a sequence of messages between lanes."""

from collections.abc import Sequence
from typing import NamedTuple

from tests.figures.drawing import BLUE, GREEN, PALE, VIOLET, WHITE, Box, Drawing, Point

LANE_WIDTH = 132
EDGE = 80
TOP, STEP = 24, 50

_FILLS = {"application": BLUE, "data": PALE, "worker": GREEN, "topic": VIOLET, "person": WHITE}


class Lane(NamedTuple):
    """A column: who sends and gets messages."""

    name: str
    kind: str


class Step(NamedTuple):
    """One message, from a lane to another."""

    source: int
    to: int
    text: str


def commit() -> str:
    """From the records of a transaction to the reader that delivers them."""
    client, data, requests, coordinator, log, markers, reader = range(7)
    return _sequence(
        "The way of a commit through the topics",
        (
            Lane("TransactionClient", "application"),
            Lane("orders, payments", "data"),
            Lane("txn-requests", "topic"),
            Lane("coordinator", "worker"),
            Lane("txn-log", "topic"),
            Lane("txn-markers", "topic"),
            Lane("Subscription", "application"),
        ),
        (
            Step(client, data, "records with `txn`,\ndelivery reports back"),
            Step(client, requests, "End(commit, counts), Open for the next"),
            Step(requests, coordinator, "batch of requests"),
            Step(coordinator, log, "entry: many records,\nepoch and serial"),
            Step(log, coordinator, "read back:\nCOMMITTING"),
            Step(coordinator, client, "answer by txn-responses: the commit is final"),
            Step(coordinator, markers, "a marker for each partition written to"),
            Step(markers, coordinator, "delivery reports"),
            Step(coordinator, log, "Ended,\nwith the next entry"),
            Step(markers, reader, "markers: COMMIT"),
            Step(data, reader, "records, in offset order up to the first undecided one"),
        ),
    )


def read() -> str:
    """From topics to the application that reads committed records."""
    application, reader, machine, data, markers, snapshots, writer = range(7)
    return _sequence(
        "The way of a read through a subscription",
        (
            Lane("application", "application"),
            Lane("Subscription", "application"),
            Lane("PartitionFilter", "application"),
            Lane("orders", "data"),
            Lane("txn-markers", "topic"),
            Lane("txn-snapshots", "topic"),
            Lane("snapshot writer", "worker"),
        ),
        (
            Step(data, machine, "records, with the\nheader `txn`"),
            Step(snapshots, machine, "`end` and parts: aborted ids, M, floors"),
            Step(markers, machine, "outcomes: committed or aborted"),
            Step(machine, reader, "visible records,\nin offset order"),
            Step(reader, application, "batches()"),
            Step(machine, data, "pause behind an\nundecided record"),
            Step(reader, writer, "after 5 s at one undecided record: ask for a snapshot"),
            Step(writer, snapshots, "newer `end`"),
            Step(snapshots, machine, "M passes the record: it is decided"),
            Step(application, reader, "commit(): what\nwas taken"),
        ),
    )


def snapshot() -> str:
    """From outcomes to a snapshot, and to markers that are not needed any more."""
    writer, data, coordinators, log, markers, snapshots = range(6)
    return _sequence(
        "The way of a snapshot",
        (
            Lane("snapshot writer", "worker"),
            Lane("orders", "data"),
            Lane("coordinators", "worker"),
            Lane("txn-log", "topic"),
            Lane("txn-markers", "topic"),
            Lane("txn-snapshots", "topic"),
        ),
        (
            Step(markers, writer, "outcomes, as they come; enough of them begin a probe"),
            Step(writer, data, "E, log start,\ntopic id"),
            Step(writer, log, "log ends: which coordinators ever had a transaction"),
            Step(writer, coordinators, "WriteBarrier(probe), to each"),
            Step(coordinators, log, "no-op,\nread back"),
            Step(coordinators, markers, "barrier: open transactions"),
            Step(markers, writer, "all barriers of the probe, then all markers to the end"),
            Step(writer, snapshots, "sealed parts, `end`, `*`: one Kafka transaction"),
            Step(writer, markers, "DeleteRecords up to K*"),
        ),
    )


def fail_over() -> str:
    """From a commit of a group on one cluster to its consumers on another."""
    here, controller, markers, link, there_markers, there_controller, there = range(7)
    return _sequence(
        "The fail-over of a group from cluster a to cluster b",
        (
            Lane("group at a", "data"),
            Lane("controller of a", "worker"),
            Lane("signals at a", "topic"),
            Lane("link a to b", "worker"),
            Lane("signals at b", "topic"),
            Lane("controller of b", "worker"),
            Lane("group at b", "data"),
        ),
        (
            Step(here, controller, "committed\noffset"),
            Step(controller, markers, "update: claims,\ngeneration"),
            Step(markers, link, "update"),
            Step(link, there_markers, "update, as well as\nrecords and buckets"),
            Step(there_markers, there_controller, "update, read\nback"),
            Step(there, there_controller, "committed offset,\nmembers"),
            Step(there_controller, there, "move to the longest\nclaimed prefix"),
            Step(there_controller, there_markers, "applied: offset,\nlost"),
            Step(there_markers, there, "a Subscription skips claimed records"),
        ),
    )


def _sequence(title: str, lanes: Sequence[Lane], steps: Sequence[Step]) -> str:
    height = TOP + 84 + STEP * len(steps)
    drawing = Drawing(EDGE * 2 + LANE_WIDTH * (len(lanes) - 1), height, title)
    for number, (name, kind) in enumerate(lanes):
        x, y = _at(number, TOP)
        drawing.box(Box(x - 62, y, 124, 36), name, fill=_FILLS[kind], size=12.5)
        drawing.line([(x, y + 36), (x, height - 20)])
    for number, (source, to, text) in enumerate(steps, 1):
        y = TOP + 34 + STEP * number
        begin, end = _at(source, y), _at(to, y)
        drawing.arrow([begin, end])
        lift = 20 if "\n" in text else 12
        drawing.label(((begin[0] + end[0]) / 2, y - lift), text, size=11)
        drawing.number(begin, str(number))
    return drawing.svg()


def _at(lane: int, y: float) -> Point:
    return EDGE + LANE_WIDTH * lane, y
