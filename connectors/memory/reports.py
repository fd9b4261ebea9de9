"""Delivery reports of the memory broker that tests have go wrong."""

from collections import defaultdict
from enum import Enum


class Report(Enum):
    """What becomes of the report of a record that has landed."""

    SENT = "sent"
    LOST = "lost"
    OFFSET_UNKNOWN = "offset unknown"


class PlannedReports:
    """Reports of the next records, by topic."""

    def __init__(self) -> None:
        self._planned: defaultdict[str, list[Report]] = defaultdict(list)

    def lose(self, topic: str) -> None:
        """Has the next record land while its writer gets `RetriableError` (A5)."""
        self._planned[topic].append(Report.LOST)

    def hide_offset(self, topic: str) -> None:
        """Has the next record be reported at offset -1, as after an idempotent retry."""
        self._planned[topic].append(Report.OFFSET_UNKNOWN)

    def next(self, topic: str) -> Report:
        """What becomes of the report of the next record; counts as one record."""
        planned = self._planned[topic]
        return planned.pop(0) if planned else Report.SENT
