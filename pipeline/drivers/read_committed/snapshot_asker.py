"""Requests a snapshot of a data partition whose reader waits at an undecided record.

*Source*: docs/protocols D2, E7: a record of a transaction that was never registered is decided only
by a snapshot whose M is above the record.

*Invariants*: at most one request for each data partition at a time; requests for the same record
become rarer; a failed request never disturbs the reading.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine, connect_snapshots
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.retry import UNDECIDED
from stilltide.schemas.values import Offset, TopicPartition, TxnId

_log = get_logger(__name__)


class Blocked(NamedTuple):
    """An undecided record at which the reader of a partition waits (D2).

    `waited_s` counts from the time when all earlier markers and snapshots were read; 0 until then.
    """

    data: TopicPartition
    offset: Offset
    txn: TxnId
    waited_s: float


@dataclass(slots=True)
class _Asked:
    offset: Offset
    again_at_s: float
    asked: int = 1


class SnapshotAsker:
    """Checks the blocked partitions regularly in `run`, until cancelled.

    Args:
        connector: the cluster.
        client_id: name of the client that asks the snapshot writers; open only during a request.
        after_s: time that a record is undecided before the first request, > 0; also the longest
            wait for an answer, and the first delay before the next request for the same record.
        blocked: returns the blocked partitions and their undecided records.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        client_id: str,
        after_s: float,
        blocked: Callable[[], Mapping[TopicPartition, Blocked]],
    ) -> None:
        self._connector = connector
        self._client_id = client_id
        self._after_s = after_s
        self._retry = UNDECIDED.scaled(after_s)
        self._blocked = blocked
        self._asked: dict[TopicPartition, _Asked] = {}

    async def run(self) -> None:
        """Requests snapshots until cancelled."""
        while True:
            await asyncio.sleep(self._after_s / 4)
            due = self.due(asyncio.get_running_loop().time())
            if not due:
                continue
            try:
                async with connect_snapshots(
                    self._connector, self._client_id, timeout_s=self._after_s
                ) as line:
                    await asyncio.gather(*(self._ask(line, data) for data in due))
            except StilltideError as error:
                self._report(due, error)

    def due(self, now_s: float) -> list[TopicPartition]:
        """The partitions whose request is due at this loop time; the request counts as sent."""
        blocked = self._blocked()
        for data in self._asked.keys() - blocked.keys():
            del self._asked[data]
        due: list[TopicPartition] = []
        for data, there in blocked.items():
            asked = self._asked.get(data)
            if asked is None or asked.offset != there.offset:
                if there.waited_s >= self._after_s:
                    self._asked[data] = _Asked(there.offset, now_s + self._retry.wait_s(1))
                    due.append(data)
            elif now_s >= asked.again_at_s:
                asked.asked += 1
                asked.again_at_s = now_s + self._retry.wait_s(asked.asked)
                due.append(data)
        return due

    async def _ask(self, line: SnapshotLine, data: TopicPartition) -> None:
        try:
            await line.take(data)
        except StilltideError as error:
            self._report([data], error)

    def _report(self, partitions: Collection[TopicPartition], error: StilltideError) -> None:
        _log.warning(
            "no snapshot for an undecided record; asking again later",
            partitions=[str(data) for data in partitions],
            error=str(error),
        )
