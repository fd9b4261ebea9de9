"""The repair of a coordinator's log behind damage: a fence, a base, and a trim (C8).

The base holds the state of a coordinator that has never opened a transaction.
"""

from stilltide.pipeline.core.coordinator.base import state_of
from stilltide.pipeline.core.coordinator.machine import Coordinator
from stilltide.schemas.coordinator import txn_log
from stilltide.schemas.coordinator.txn_log import encode_state
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.log_frames import Base, Fence, Noop
from stilltide.schemas.values import EndOffset, Offset

Entry = tuple[bytes, list[tuple[str, bytes]]]
"""Value and headers of an entry."""

FENCE: Entry = txn_log.encode_own(Fence(bytes(16)), 0), []


def entries_behind(coordinator: int, fence: int) -> list[Entry]:
    """The entries to write after a fence at this offset; the log is trimmed to the first of them.

    The first one changes nothing. The second one is the base, as of the offset of the first.
    """
    state = b"".join(encode_state(state_of(Coordinator(coordinator, Offset(0)).state)))
    values = [
        txn_log.encode_own(Noop(), 0),
        txn_log.encode_own(Base(EndOffset(fence + 1), 0, 1, state), 0),
    ]
    return [
        (value, EntryStamp(Offset(fence), serial).to_headers())
        for serial, value in enumerate(values, 1)
    ]
