"""Asks the coordinators of a cluster: who serves, and the oldest transactions without an end.

*Source*: docs/protocols C1, B8. *Invariants*: nobody is asked while the cluster has no worker, so
that its absence costs no time-out.
"""

from typing import NamedTuple

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.core.status.values import (
    LISTED_MAX,
    CoordinatorStatus,
    EndedStatus,
    OldestTransaction,
    TransactionsStatus,
)
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.shared.system_topics import require_topics
from stilltide.pipeline.errors import PipelineError, RefusedError, RequestTimeoutError
from stilltide.schemas.coordinator.transactions import (
    CoordinatorStats,
    Description,
    Listed,
    ListTransactions,
    Refused,
)
from stilltide.schemas.service.client_ids import shown_client
from stilltide.schemas.topics import TXN_LOG
from stilltide.schemas.values import TxnId

ANSWER_S = 5.0
"""Seconds after which a coordinator counts as silent; a new owner serves sooner in most cases."""


class Unended(NamedTuple):
    """A transaction that has not ended, and its coordinator."""

    txn: TxnId
    description: Description

    @property
    def client(self) -> str:
        """Name and key of its client."""
        return shown_client(self.description.client_name, self.description.client_key)


class CoordinatorsRead(NamedTuple):
    """The answers of a cluster's coordinators.

    Attributes:
        coordinators: by number.
        ended: owners and links that an error has ended, by kind and name.
        transactions: counts and the oldest one.
        undecided: the first page of each coordinator's transactions, the oldest of each first.
    """

    coordinators: tuple[CoordinatorStatus, ...]
    ended: tuple[EndedStatus, ...]
    transactions: TransactionsStatus
    undecided: tuple[Unended, ...]


class CoordinatorsLook:
    """Asks a cluster's coordinators; the connection stays open between questions.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
    """

    def __init__(self, connector: Connector, admin: LogAdmin) -> None:
        self._connector = connector
        self._admin = admin
        self._line: Coordinators | None = None

    async def read(self, *, worker_runs: bool) -> CoordinatorsRead:
        """Asks every coordinator; without a worker all count as silent, unasked.

        Raises:
            FatalError: the system topics do not exist.
            ConnectorError, ClientFailedError: the cluster cannot be reached.
        """
        found = await self._admin.describe_topics([TXN_LOG])
        require_topics([TXN_LOG], found)
        count = found[TXN_LOG].partition_count
        if not worker_runs:
            return summed_up(dict.fromkeys(range(count)), {})
        try:
            line = await self._connected(count)
            stats = await line.stats()
            serving = [it for it, one in stats.items() if isinstance(one, CoordinatorStats)]
            pages = {it: await self._page(line, it) for it in serving}
        except (ConnectorError, PipelineError):
            await self.close()
            raise
        return summed_up(stats, pages)

    async def close(self) -> None:
        """Releases the connection."""
        line, self._line = self._line, None
        if line is not None:
            await line.__aexit__(None, None, None)

    async def _connected(self, count: int) -> Coordinators:
        """The connection; a new one if coordinators were added since (C14)."""
        if self._line is not None and self._line.count != count:
            await self.close()
        if self._line is None:
            line = Coordinators(self._connector, request_timeout_s=ANSWER_S)
            self._line = await line.__aenter__()
        return self._line

    async def _page(self, line: Coordinators, coordinator: int) -> Listed | None:
        """The coordinator's transactions with the lowest sequences, which are the oldest."""
        try:
            answer = await line.ask(coordinator, ListTransactions())
        except (RefusedError, RequestTimeoutError):  # it has ended, or moved, meanwhile
            return None
        assert isinstance(answer, Listed)
        return answer


def summed_up(
    stats: dict[int, CoordinatorStats | Refused | None], pages: dict[int, Listed | None]
) -> CoordinatorsRead:
    """The answers of all coordinators as values."""
    told = [one for one in stats.values() if isinstance(one, CoordinatorStats)]
    undecided = sorted(
        (
            Unended(TxnId(number, one.sequence), one)
            for number, page in pages.items()
            if page is not None
            for one in page.transactions
        ),
        key=lambda it: it.description.opened_at_ms,
    )
    return CoordinatorsRead(
        tuple(_coordinator(number, one) for number, one in sorted(stats.items())),
        tuple(sorted({EndedStatus(*end) for one in told for end in one.ends})),
        TransactionsStatus(
            sum(one.open_count for one in told),
            sum(one.committing_count for one in told),
            sum(one.aborting_count for one in told),
            _oldest(undecided[0]) if undecided else None,
            tuple(it for it, one in sorted(stats.items()) if not isinstance(one, CoordinatorStats)),
            tuple(_oldest(one) for one in undecided[:LISTED_MAX]),
        ),
        tuple(undecided),
    )


def _coordinator(number: int, answer: CoordinatorStats | Refused | None) -> CoordinatorStatus:
    problem = answer.reason if isinstance(answer, Refused) else ""
    return CoordinatorStatus(number, isinstance(answer, CoordinatorStats), problem)


def _oldest(one: Unended) -> OldestTransaction:
    about = one.description
    return OldestTransaction(
        str(one.txn),
        about.state,
        about.opened_at_ms,
        about.timeout_ms,
        one.client,
        len(about.partitions),
    )
