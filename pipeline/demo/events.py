"""Events from a file of newline-delimited JSON, grouped into transactions.

Any NDJSON is accepted: `type`, if present, decides the topic, and `order_id` or `id` the key.
"""

import json
from collections.abc import Generator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from stilltide.schemas.errors import StilltideError

ORDERS = "orders"
PAYMENTS = "payments"

SAMPLE = Path(__file__).with_name("events.ndjson")
"""3600 events of a shop's orders and their payments."""


class EventsFileError(StilltideError):
    """A file of events that cannot be read, or a line that is no JSON object."""


class Event(NamedTuple):
    """One event and its destination."""

    topic: str
    key: bytes | None
    value: bytes


def read_lines(path: Path, per_transaction: int) -> Generator[list[tuple[int, bytes]]]:
    """Numbered lines, `per_transaction` at a time; blank lines are left out.

    Raises:
        EventsFileError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            while group := list(islice(lines, per_transaction)):
                yield group
    except OSError as error:
        raise EventsFileError(
            f"cannot read {path}", detail=error.strerror or str(error), hint="check --file"
        ) from error


def parse(path: Path, number: int, line: bytes) -> Event:
    """The event of one line.

    Events whose type begins with `payment` go to the topic payments, others to orders; without a
    type, odd lines go to orders and even ones to payments.

    Raises:
        EventsFileError: the line is not a JSON object; names the line.
    """
    try:
        event = json.loads(line)
    except ValueError as error:
        raise EventsFileError(
            f"{path.name} line {number} is not JSON",
            detail=str(error),
            hint="its transaction was aborted and reading stopped there; mend the line",
        ) from error
    if not isinstance(event, dict):
        raise EventsFileError(
            f"{path.name} line {number} is not a JSON object",
            hint="its transaction was aborted and reading stopped there; mend the line",
        )
    kind = event.get("type")
    payment = str(kind).startswith("payment") if kind is not None else number % 2 == 0
    key = event.get("order_id", event.get("id"))
    return Event(
        PAYMENTS if payment else ORDERS,
        None if key is None else str(key).encode(),
        line.rstrip(b"\r\n"),
    )
