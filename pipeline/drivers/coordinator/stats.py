"""The figures of a coordinator, for operators and for metrics.

*Source*: Pulsar's stats and internal stats of a coordinator; docs/protocols C1b, C7.
"""

from collections import Counter
from itertools import islice

from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.buffered_log.liveness import Liveness
from stilltide.pipeline.core.coordinator.state import CoordinatorState, TxnState
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.pipeline.drivers.service.ownership import Ownership, log_figures
from stilltide.schemas.coordinator.transactions import CoordinatorStats, LiveEntry, LogLiveness

LIVE_ENTRIES_MAX = 1000
"""Entries with live records that an answer names; entries after them are only counted."""


def coordinator_stats(
    state: CoordinatorState,
    owned_log: OwnedLog,
    limits: BatchLimits,
    ownership: Ownership,
    markers_pending: int,
) -> CoordinatorStats:
    """The figures of a serving coordinator; costs a walk over open transactions and clients."""
    count = Counter(txn.state for txn in state.transactions.values())
    return CoordinatorStats(
        log=log_figures(owned_log, limits, ownership),
        next_sequence=state.next_sequence,
        low_watermark=state.low_watermark,
        open_count=count[TxnState.OPEN],
        committing_count=count[TxnState.COMMITTING],
        aborting_count=count[TxnState.ABORTING],
        has_served=ownership.has_served,
        markers_pending=markers_pending,
        client_count=len(state.clients),
        answer_count=sum(len(client.answers) for client in state.clients.values()),
        liveness=None,
    )


def log_liveness(liveness: Liveness, *, entries: bool) -> LogLiveness:
    """The part of the log that is still needed; with `entries` also entries with live records."""
    found = islice(liveness.live_entries().items(), LIVE_ENTRIES_MAX) if entries else ()
    return LogLiveness(
        first_live_offset=liveness.first_live_offset,
        live_records=liveness.live_count,
        dead_records=liveness.dead_count,
        entries=tuple(LiveEntry(offset, bits) for offset, bits in found),
    )
