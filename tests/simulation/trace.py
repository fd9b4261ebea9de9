"""What happened in a world, event by event, for people who look for the cause of a failure."""

import asyncio
from typing import NamedTuple


class Event(NamedTuple):
    """One event: what a process or the network did, at a virtual time."""

    at_s: float
    process: str
    text: str

    def __str__(self) -> str:
        return f"{self.at_s:11.6f}  {self.process:12}  {self.text}"


class Trace:
    """The events of a world; takes none unless it is on, and then up to a million."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.events: list[Event] = []

    def note(self, process: str, text: str) -> None:
        """Adds an event."""
        if self.on and len(self.events) < EVENTS_MAX:
            self.events.append(Event(asyncio.get_running_loop().time(), process, text))


EVENTS_MAX = 1_000_000
