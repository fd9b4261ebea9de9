"""What a coordinator's owner says of itself, to who asks it and to the metrics.

*Source*: facts, pulsar.md 7 (stats and internals of a coordinator); protocols.md C1b, C7.
"""

from collections import Counter
from itertools import islice

from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.buffered_log.liveness import Liveness
from stilltide.pipeline.core.coordinator.state import CoordinatorState, TxnState
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.pipeline.drivers.service.ownership import Ownership
from stilltide.schemas.coordinator.transactions import CoordinatorStats, LiveEntry, LogLiveness

LIVE_ENTRIES_MAX = 1000
"""Entries with live records that an answer names; all of them are counted."""


def coordinator_stats(
    state: CoordinatorState,
    owned_log: OwnedLog,
    limits: BatchLimits,
    ownership: Ownership,
    markers_pending: int,
) -> CoordinatorStats:
    """The figures of an owner that serves; costs a walk over open transactions and clients."""
    assert owned_log.epoch is not None, "asked of an owner that does not serve"
    count = Counter(txn.state for txn in state.transactions.values())
    return CoordinatorStats(
        epoch=owned_log.epoch,
        next_sequence=state.next_sequence,
        low_watermark=state.low_watermark,
        open_count=count[TxnState.OPEN],
        committing_count=count[TxnState.COMMITTING],
        aborting_count=count[TxnState.ABORTING],
        has_served=ownership.has_served,
        batching_enabled=limits.batching,
        batch_records_max=limits.records_max,
        batch_bytes_max=limits.bytes_max,
        batch_delay_us_max=round(limits.delay_ms_max * 1000),
        flush_eager=limits.eager,
        entries_written=ownership.entries_written,
        records_written=ownership.records_written,
        appends_in_flight=owned_log.in_flight,
        markers_pending=markers_pending,
        recovery_ms=ownership.recovery_ms,
        client_count=len(state.clients),
        answer_count=sum(len(client.answers) for client in state.clients.values()),
        liveness=None,
    )


def log_liveness(liveness: Liveness, *, entries: bool) -> LogLiveness:
    """Which part of the log is still needed; the first entries with live records if asked for."""
    found = islice(liveness.live_entries().items(), LIVE_ENTRIES_MAX) if entries else ()
    return LogLiveness(
        first_live_offset=liveness.first_live_offset,
        live_records=liveness.live_count,
        dead_records=liveness.dead_count,
        entries=tuple(LiveEntry(offset, bits) for offset, bits in found),
    )
