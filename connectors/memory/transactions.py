"""Native transactions of the memory broker.

*Invariants*: `append_all` writes and commits a transaction in one step. A transaction of
`append_open` stays open until `end_open`, or until another writer fences its transactional id.
"""

from collections.abc import Callable, Sequence

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.memory.log import Log
from stilltide.connectors.memory.reports import PlannedReports, Report
from stilltide.connectors.memory.watchers import Watchers
from stilltide.connectors.ports.records import NewRecord
from stilltide.schemas.headers import Headers
from stilltide.schemas.values import Offset, TopicPartition

LogFor = Callable[[TopicPartition, bytes | None, bytes | None], Log]


class MemoryTransactions:
    """The transactional ids of one broker, and their open transactions.

    Args:
        check_up: raises `RetriableError` while the broker is down.
        log_for: the log that takes a record; raises as `MemoryBroker.append`.
        reports: planned delivery reports of appended records.
        watchers: calls that follow every change.
    """

    def __init__(
        self,
        check_up: Callable[[], None],
        log_for: LogFor,
        reports: PlannedReports,
        watchers: Watchers,
    ) -> None:
        self._check_up = check_up
        self._log_for = log_for
        self._reports = reports
        self._watchers = watchers
        self._epochs: dict[str, int] = {}
        self._written: dict[str, list[tuple[Log, Offset]]] = {}  # records of open transactions

    def fence(self, transactional_id: str) -> int:
        """Raises and returns the epoch of a transactional id, which fences its earlier writers.

        Raises:
            RetriableError: the broker is down.
        """
        self._check_up()
        epoch = self._epochs[transactional_id] = self.epoch_of(transactional_id) + 1
        self.end_open(transactional_id, committed=False)
        return epoch

    def epoch_of(self, transactional_id: str) -> int:
        """The epoch of a transactional id; 0 before its first fence."""
        return self._epochs.get(transactional_id, 0)

    def append_all(self, records: Sequence[NewRecord]) -> None:
        """Appends all records or none, and a control record in each partition.

        Raises:
            RetriableError: the broker is down, or it is not known whether the records were
                appended.
            FatalError: as `MemoryBroker.append` raises; no record was appended.
        """
        self._check_up()
        logs = {it.data: self._log_for(*it) for it in records}
        reports = [self._reports.next(data.topic) for data in logs]
        for data, key, value in records:
            logs[data].append(key, value, None)
        for log in logs.values():
            log.append_control()
        self._watchers.notify(logs)
        if Report.LOST in reports:
            raise RetriableError("no answer to the end of a transaction")

    def append_open(
        self,
        transactional_id: str,
        data: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
    ) -> Offset:
        """Appends a record of a transaction that stays open; raises as `MemoryBroker.append`."""
        log = self._log_for(data, key, value)
        log.open.setdefault(transactional_id, Offset(log.end))
        offset = log.append(key, value, headers)
        self._written.setdefault(transactional_id, []).append((log, offset))
        self._watchers.notify([data])
        return offset

    def end_open(self, transactional_id: str, *, committed: bool) -> None:
        """Ends the open transaction of an id, if any, with a control record in each log."""
        written = self._written.pop(transactional_id, [])
        for log, offset in written:
            if not committed:
                log.aborted.add(offset)
            if log.open.pop(transactional_id, None) is not None:
                log.append_control()
        self._watchers.notify(dict.fromkeys(log.data for log, _ in written))
