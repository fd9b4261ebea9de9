"""Wrong delivery reports of the memory broker, planned by tests."""

from collections import defaultdict
from enum import Enum


class Report(Enum):
    """The delivery report of a record that was appended: right, lost, or without offset."""

    SENT = "sent"
    LOST = "lost"
    OFFSET_UNKNOWN = "offset unknown"


class PlannedReports:
    """The planned reports of the next records of each topic."""

    def __init__(self) -> None:
        self._planned: defaultdict[str, list[Report]] = defaultdict(list)

    def lose(self, topic: str) -> None:
        """Plans that the next record is appended, but its writer gets `RetriableError` (A5)."""
        self._planned[topic].append(Report.LOST)

    def hide_offset(self, topic: str) -> None:
        """Plans that the next record is reported at offset -1, as after an idempotent retry."""
        self._planned[topic].append(Report.OFFSET_UNKNOWN)

    def next(self, topic: str) -> Report:
        """Takes the planned report of the next record."""
        planned = self._planned.get(topic)
        return planned.pop(0) if planned else Report.SENT
