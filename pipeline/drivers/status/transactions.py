"""Asks the coordinators of a cluster: who serves, and the oldest transactions without an end.

*Source*: docs/protocols C1, B8. *Invariants*: nobody is asked while the cluster has no worker, so
that its absence costs no time-out.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.core.status.values import (
    LISTED_MAX,
    TIME_OUT,
    CompactedStatus,
    CoordinatorStatus,
    EndedStatus,
    OldestTransaction,
    TransactionsStatus,
)
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.errors import PipelineError, RefusedError, RequestTimeoutError
from stilltide.schemas.coordinator.transactions import (
    AbortCause,
    CoordinatorStats,
    Description,
    Listed,
    ListTransactions,
    OperatorDecision,
    ReportedEnd,
)
from stilltide.schemas.decisions import parse_decider
from stilltide.schemas.service.envelopes import Refused, shown_client
from stilltide.schemas.topics import TXN_LOG
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId

ABORTED_BY = {
    AbortCause.CLIENT: "its client",
    AbortCause.TIMED_OUT: TIME_OUT,
    AbortCause.OPERATOR: "an operator",
    AbortCause.TOKEN: "the holder of its token",
}
"""Who aborts a transaction, in words."""

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


class OwnersRead(NamedTuple):
    """Who serves.

    Attributes:
        coordinators: by number.
        ended: owners and links that an error has ended, by kind and name.
        compacted: topics that compact, by name.
    """

    coordinators: tuple[CoordinatorStatus, ...]
    ended: tuple[EndedStatus, ...]
    compacted: tuple[CompactedStatus, ...] = ()


class TransactionsRead(NamedTuple):
    """What a cluster's coordinators say of transactions.

    Attributes:
        transactions: counts and the oldest ones.
        undecided: the first page of each coordinator's transactions, the oldest of each first.
    """

    transactions: TransactionsStatus
    undecided: tuple[Unended, ...]


class _Summarised(NamedTuple):
    """What a summary was made of: the coordinators, and the pages of those that have told one."""

    coordinators: frozenset[int]
    pages: Mapping[int, Listed | None]


class CoordinatorsLook:
    """Asks a cluster's coordinators; the connection stays open between questions.

    A coordinator's state is a function of its log (C0). So a list of transactions holds as long as
    the log ends where the coordinator had read to, and the broker is asked where that is.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
    """

    def __init__(self, connector: Connector, admin: LogAdmin) -> None:
        self._connector = connector
        self._admin = admin
        self._line: Coordinators | None = None
        self._stats: dict[int, CoordinatorStats | Refused | None] = {}
        self._pages: dict[int, Listed | None] = {}
        self._held: _Summarised | None = None
        self._read: TransactionsRead | None = None

    async def owners(self, *, worker_runs: bool) -> OwnersRead:
        """Asks every coordinator; without a worker all count as silent, unasked.

        Raises:
            FatalError: the system topics do not exist.
            ConnectorError, ClientFailedError: the cluster cannot be reached.
        """
        described = await self._admin.describe_topics([TXN_LOG])
        require_topics([TXN_LOG], described)
        count = described[TXN_LOG].partition_count
        if not worker_runs:
            self._stats = dict.fromkeys(range(count))
        else:
            try:
                self._stats = await (await self._connected(count)).stats()
            except (ConnectorError, PipelineError):
                await self.close()
                raise
        for number, answer in self._stats.items():
            page = self._pages.get(number)
            if page is not None and isinstance(answer, CoordinatorStats):
                self._pages[number] = _still(page, answer)
        answered = [one for one in self._stats.values() if isinstance(one, CoordinatorStats)]
        return OwnersRead(
            tuple(_coordinator(number, one) for number, one in sorted(self._stats.items())),
            ended_owners(answered),
            compacted_topics(answered),
        )

    async def transactions(self) -> TransactionsRead:
        """The transactions of the coordinators that have answered `owners`.

        The same value as before if none of their logs has grown. Raises as `owners`.
        """
        stats = self._stats
        serving = [it for it, one in stats.items() if isinstance(one, CoordinatorStats)]
        line = self._line
        if line is None or not serving:
            return summed_up(stats, {})
        logs = [TopicPartition(TXN_LOG, number) for number in serving]
        ends = await self._admin.end_offsets(logs)
        due = [
            number
            for number, log in zip(serving, logs, strict=True)
            if (page := self._pages.get(number)) is None or page.as_of != ends.get(log)
        ]
        try:
            pages = await asyncio.gather(*(self._page(line, number) for number in due))
        except (ConnectorError, PipelineError):
            await self.close()
            raise
        self._pages |= dict(zip(due, pages, strict=True))
        listed = {number: self._pages.get(number) for number in serving}
        content = _Summarised(
            frozenset(stats), {it: page and _content(page) for it, page in listed.items()}
        )
        if self._read is None or content != self._held:
            self._held, self._read = content, summed_up(stats, listed)
        return self._read

    async def close(self) -> None:
        """Releases the connection."""
        line, self._line = self._line, None
        self._pages.clear()
        self._read = None
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


def _still(page: Listed, stats: CoordinatorStats) -> Listed:
    """A page as of the place of the figures, if nothing has changed on the way there."""
    holds = stats.changed_at < page.as_of <= stats.as_of
    return page._replace(as_of=stats.as_of) if holds else page


def _content(page: Listed) -> Listed:
    """A page without its place, which each question moves on."""
    return page._replace(as_of=EndOffset(0))


def summed_up(
    stats: Mapping[int, CoordinatorStats | Refused | None], pages: Mapping[int, Listed | None]
) -> TransactionsRead:
    """The transactions of all coordinators as values; one without a page counts as silent."""
    listed = {number: page for number, page in pages.items() if page is not None}
    undecided = sorted(
        (
            Unended(TxnId(number, transaction.sequence), transaction)
            for number, page in listed.items()
            for transaction in page.transactions
        ),
        key=lambda it: it.description.opened_at_ms,
    )
    return TransactionsRead(
        TransactionsStatus(
            sum(page.open_count for page in listed.values()),
            sum(page.committing_count for page in listed.values()),
            sum(page.aborting_count for page in listed.values()),
            _oldest(undecided[0]) if undecided else None,
            tuple(number for number in sorted(stats) if number not in listed),
            tuple(_oldest(one) for one in undecided[:LISTED_MAX]),
            {
                str(TxnId(number, sequence)): ABORTED_BY[cause]
                for number, page in listed.items()
                for sequence, cause in page.aborts
            },
            sum(page.prepared_count for page in listed.values()),
            {
                str(TxnId(number, decision.sequence)): _reason(decision)
                for number, page in listed.items()
                for decision in page.decisions
            },
        ),
        tuple(undecided),
    )


def _reason(decision: OperatorDecision) -> str:
    """Who has decided how a prepared transaction ends, and why."""
    return f"{decision.decided_by or 'an operator'}: {decision.reason}"


def compacted_topics(answered: Iterable[CoordinatorStats]) -> tuple[CompactedStatus, ...]:
    """The topics that compact, by name; since when the first worker has seen that."""
    seen: dict[str, int] = {}
    for topic, seen_ms in (one for stats in answered for one in stats.compacted):
        seen[topic] = min(seen_ms, seen.get(topic, seen_ms))
    return tuple(CompactedStatus(*one) for one in sorted(seen.items()))


def ended_owners(answered: Iterable[CoordinatorStats]) -> tuple[EndedStatus, ...]:
    """What the workers' coordinators tell of them, which all coordinators of one worker tell."""
    seen: dict[tuple[str, str, str], EndedStatus] = {}
    for end in sorted((end for one in answered for end in one.ends), key=lambda it: it.ended_ms):
        seen.setdefault((end.kind, end.name, end.hint), _ended(end))
    return tuple(sorted(seen.values()))


def _ended(end: ReportedEnd) -> EndedStatus:
    return EndedStatus(end.kind, end.name, end.ended_ms, end.why, end.hint)


def _coordinator(number: int, answer: CoordinatorStats | Refused | None) -> CoordinatorStatus:
    if not isinstance(answer, CoordinatorStats):
        problem = answer.reason if isinstance(answer, Refused) else ""
        return CoordinatorStatus(number, serving=False, problem=problem)
    return CoordinatorStatus(
        number,
        serving=True,
        epoch=answer.log.epoch,
        commit_count=answer.commit_count,
        abort_count=answer.abort_count,
    )


def _oldest(unended: Unended) -> OldestTransaction:
    about = unended.description
    preparation = about.preparation
    return OldestTransaction(
        str(unended.txn),
        about.state,
        about.opened_at_ms,
        about.timeout_ms,
        unended.client,
        len(about.partitions),
        "" if about.cause is None else ABORTED_BY[about.cause],
        None if preparation is None else preparation.prepared_at_ms,
        "" if preparation is None else parse_decider(preparation.decider).name,
    )
