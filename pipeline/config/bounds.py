"""The lowest and highest values of numeric settings, each with its reason.

*Source*: docs/protocols A (thresholds and bounds of the buffered log), C2 (the highest time-out).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from stilltide.connectors.names import PORT_MAX
from stilltide.pipeline.core.groups.position_snapshots import SNAPSHOTS_MIN
from stilltide.schemas.framing import RECORDS_MAX

KIB = 1024
MIB = 1024 * KIB
MINUTE_MS = 60 * 1000
_INT16_MAX = 32_767


class Bound(NamedTuple):
    """The lowest and highest value of a setting, and the reason for both."""

    least: float
    most: float
    reason: str


_BATCH_RECORDS = Bound(10, RECORDS_MAX, "smaller batches gain nothing, and readers refuse larger")
_BATCH_BYTES = Bound(
    128 * KIB, 4 * MIB, "smaller batches gain nothing, and topics refuse larger entries"
)
_BATCH_DELAY_MS = Bound(
    1, 1000, "timers are no finer, and in timer mode every caller waits for that long"
)

BOUNDS: Mapping[str, Bound] = MappingProxyType(
    {
        "coordinators": Bound(1, 256, "each coordinator is a partition that some worker must own"),
        "partitions": Bound(1, 256, "each system topic has that many partitions"),
        "replication_factor": Bound(1, _INT16_MAX, "Kafka counts replicas in 16 bits"),
        "min_insync_replicas": Bound(1, _INT16_MAX, "Kafka counts replicas in 16 bits"),
        "txn_log_batch_records_max": _BATCH_RECORDS,
        "txn_log_batch_bytes_max": _BATCH_BYTES,
        "txn_log_batch_delay_ms_max": _BATCH_DELAY_MS,
        "pending_ack_batch_records_max": _BATCH_RECORDS,
        "pending_ack_batch_bytes_max": _BATCH_BYTES,
        "pending_ack_batch_delay_ms_max": _BATCH_DELAY_MS,
        "replication_snapshot_interval_ms": Bound(
            100, 10 * MINUTE_MS, "each attempt writes to every cluster; a fail-over reads that far"
        ),
        "replication_snapshot_timeout_ms": Bound(
            1000, 10 * MINUTE_MS, "answers come by the links, and the next attempt waits as long"
        ),
        "replication_snapshots_max": Bound(
            SNAPSHOTS_MIN, 1000, "the oldest, the newest and one between them; all in one record"
        ),
        "snapshot_changes_max": Bound(
            1, 1_000_000, "a new reader reads up to that many markers after the snapshot"
        ),
        "snapshot_interval_ms": Bound(
            100, 10 * MINUTE_MS, "each snapshot asks every coordinator; readers may wait for one"
        ),
        "snapshot_part_bytes_max": Bound(
            KIB, 512 * KIB, "a snapshot's end holds that much and more, and a record holds 1 MiB"
        ),
        "marker_retention_ms": Bound(
            0, 366 * 24 * 60 * MINUTE_MS, "each transaction keeps a record for each partition"
        ),
        "txn_timeout_ms_max": Bound(
            1000, 24 * 60 * MINUTE_MS, "an open transaction holds back every reader behind it"
        ),
        "client_transactions_max": Bound(
            1, 1_000_000, "a client that holds more would take the worker's memory from others"
        ),
        "transaction_partitions_max": Bound(
            1, 10_000, "each partition gets a marker, and a longer request is not read"
        ),
        "client_partitions_max": Bound(
            1, 10_000_000, "a client that holds more would take the worker's memory from others"
        ),
        "client_requests_max": Bound(
            1, 60_000, "a coordinator remembers 65 536 answers of a client at most"
        ),
        "coordinator_state_mib_max": Bound(
            16, 65_536, "an empty coordinator takes nothing; a worker's memory is bounded by this"
        ),
        "outcome_history": Bound(
            0, 100_000_000, "each base of a coordinator holds a bit for each, 12.5 MB at the most"
        ),
        "resolve_after_ms": Bound(
            0, 10 * MINUTE_MS, "a client ends its transactions at once; readers wait meanwhile"
        ),
        "session_timeout_s": Bound(
            1, 1800, "brokers refuse group members with session time-outs out of their own bounds"
        ),
        "broker_away_s_max": Bound(
            1, 3600, "a broker starts within minutes, and a wrong address must be told at the start"
        ),
        "request_timeout_s": Bound(1, 300, "a slow broker may answer; an absent one is noticed"),
        "line_port": Bound(0, PORT_MAX, "a TCP port, or 0 for a free one"),
        "web_port": Bound(0, PORT_MAX, "a TCP port, or 0 for a free one"),
    }
)
"""Bounds of numeric settings, both included."""
