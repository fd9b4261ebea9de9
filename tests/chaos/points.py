"""Named points of the protocol at which a fault strikes, recognised by what topics say."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Record
from stilltide.schemas.coordinator import markers, txn_log
from stilltide.schemas.coordinator.markers import Barrier
from stilltide.schemas.coordinator.transactions import End, Ended
from stilltide.schemas.framing import decode_value
from stilltide.schemas.log_frames import Base, Fence
from stilltide.schemas.pending_ack import codec as pending_ack
from stilltide.schemas.pending_ack.acknowledgements import Acknowledge, Attach, Settle
from stilltide.schemas.replication import signals
from stilltide.schemas.replication.signals import (
    AppliedKey,
    RequestKey,
    ResponseKey,
    SnapshotsKey,
    UpdateKey,
)
from stilltide.schemas.service.envelopes import Request
from stilltide.schemas.topics import (
    OPERATOR_ACK_REQUESTS,
    PENDING_ACK_LOG,
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    TXN_LOG,
    TXN_MARKERS,
    TXN_REQUESTS,
    TXN_RESPONSES,
    TXN_SNAPSHOTS,
)
from stilltide.schemas.values import Offset, TopicPartition


@dataclass(frozen=True)
class Point:
    """Reached when `topic` holds a record that `is_it` knows, written from now on."""

    name: str
    topic: str
    is_it: Callable[[Record], bool] = lambda _: True

    def __str__(self) -> str:
        return self.name


def _log_holds(kind: type) -> Callable[[Record], bool]:
    """Whether an entry of txn-log holds a record, or a request, of this kind."""

    def is_it(record: Record) -> bool:
        bodies = [txn_log.decode(one).body for one in decode_value(record.value)]
        return any(
            isinstance(body.body if isinstance(body, Request) else body, kind) for body in bodies
        )

    return is_it


def _ack_log_holds(kind: type) -> Callable[[Record], bool]:
    """Whether an entry of pending-ack-log holds a record, or a request, of this kind."""

    def is_it(record: Record) -> bool:
        bodies = [pending_ack.decode(one).body for one in decode_value(record.value)]
        return any(
            isinstance(body.body.ask if isinstance(body, Request) else body, kind)
            for body in bodies
        )

    return is_it


def _asked_to_settle(record: Record) -> bool:
    """Whether a value of operator-ack-requests holds a settle."""
    requests = map(pending_ack.decode_request, decode_value(record.value))
    return any(isinstance(request.body.ask, Settle) for request in requests)


def _is_barrier(record: Record) -> bool:
    """Whether a record of txn-markers is an answer to a snapshot writer."""
    return isinstance(markers.decode(record.key, record.value), Barrier)


REQUESTED = Point("a request was sent", TXN_REQUESTS)
DECIDED = Point("an end is in the log", TXN_LOG, _log_holds(End))
MARKED = Point("a marker was written", TXN_MARKERS)
ENDED = Point("a transaction has ended in the log", TXN_LOG, _log_holds(Ended))
ANSWERED = Point("an answer was sent", TXN_RESPONSES)
PROBED = Point("a coordinator has written a barrier", TXN_MARKERS, _is_barrier)
SNAPPED = Point("a snapshot is being written", TXN_SNAPSHOTS)
FENCED = Point("a fence is in the log", TXN_LOG, _log_holds(Fence))

POINTS = (REQUESTED, DECIDED, MARKED, ENDED, ANSWERED, PROBED, SNAPPED)
"""Where a fault may strike while transactions run."""

ACK_LOGGED = Point("an acknowledgement is in the log", PENDING_ACK_LOG, _ack_log_holds(Acknowledge))
TO_SETTLE = Point("a worker has asked another to settle", OPERATOR_ACK_REQUESTS, _asked_to_settle)
SETTLED = Point("a settle is in the log", PENDING_ACK_LOG, _ack_log_holds(Settle))
ACK_BASE = Point("a base of acknowledgements was written", PENDING_ACK_LOG, _ack_log_holds(Base))
CLAIMED = Point("a member has claimed a partition", PENDING_ACK_LOG, _ack_log_holds(Attach))

ACK_POINTS = (ACK_LOGGED, DECIDED, SETTLED, ACK_BASE, CLAIMED)
"""Where a fault may strike while messages are acknowledged."""


def _tells(kind: type) -> Callable[[Record], bool]:
    """Whether a record of replication-markers is of this kind."""
    return lambda record: isinstance(signals.decode(record.key, record.value)[0], kind)


COPIED = Point("a link has committed", REPLICATION_POSITIONS)
ASKED = Point("a request for positions was written", REPLICATION_MARKERS, _tells(RequestKey))
RESPONDED = Point("positions were told", REPLICATION_MARKERS, _tells(ResponseKey))
MEASURED = Point("snapshots were written", REPLICATION_MARKERS, _tells(SnapshotsKey))
UPDATED = Point("a group was published", REPLICATION_MARKERS, _tells(UpdateKey))
APPLIED = Point("a group was moved", REPLICATION_MARKERS, _tells(AppliedKey))

COPY_POINTS = (COPIED, ASKED, RESPONDED, MEASURED)
"""Where a fault may strike while data is copied."""
REPLICATION_POINTS = (*COPY_POINTS, UPDATED, APPLIED)
"""Where one may strike while groups read, too."""


async def reached(connector: Connector, point: Point) -> None:
    """Returns as soon as the point is met, on any partition."""
    admin = connector.admin()
    reader = connector.reader("chaos-points", committed=False)
    try:
        described = (await admin.describe_topics([point.topic]))[point.topic]
        partitions = [TopicPartition(point.topic, it) for it in range(described.partition_count)]
        while True:
            ends = await admin.end_offsets(partitions)
            await reader.assign({data: Offset(end) for data, end in ends.items()})
            with suppress(OffsetOutOfRangeError):  # trimmed just there: once more
                while True:
                    items = await reader.read()
                    if any(isinstance(it, Record) and point.is_it(it) for it in items):
                        return
    finally:
        await reader.close()
        await admin.close()
