"""Values of no bytes, and of no version, in every topic whose records this product decodes."""

from collections.abc import Callable

import pytest

from stilltide.schemas import settings
from stilltide.schemas.coordinator import markers, txn_log
from stilltide.schemas.coordinator.markers import decode_barrier, encode_barrier_key
from stilltide.schemas.errors import DecodeError, UnknownVersionError
from stilltide.schemas.native import aborted_index
from stilltide.schemas.pending_ack import codec
from stilltide.schemas.replication import positions, signals
from stilltide.schemas.replication.signals import SnapshotsKey
from stilltide.schemas.snapshots import snapshots
from stilltide.schemas.values import ClusterName, Offset, TopicPartition, TxnId

P = TopicPartition("orders", 0)
MARKER = markers.encode_key(P, TxnId(0, 1))
SIGNAL = signals.encode_key(SnapshotsKey(P, ClusterName("a")))

VERSIONED: dict[str, Callable[[bytes], object]] = {
    "the end of a snapshot": snapshots.decode_end,
    "the part of a snapshot": snapshots.decode_part,
    "the star of a snapshot": snapshots.decode_star,
    "a run of aborted ranges": lambda value: aborted_index.decode_run(Offset(0), value),
    "the coverage of an index": aborted_index.decode_coverage,
    "a bucket of the offset index": positions.decode_bucket,
    "a beat of a link": positions.decode_beat,
    "a signal": lambda value: signals.decode(SIGNAL, value),
}
UNVERSIONED: dict[str, Callable[[bytes], object]] = {
    "an outcome marker": lambda value: markers.decode(MARKER, value),
    "a barrier": lambda value: decode_barrier(encode_barrier_key(0), value),
    "a record of txn-log": txn_log.decode,
    "a record of pending-ack-log": codec.decode,
    "dynamic setting 'a'": lambda value: settings.decode(b"a", value),
}


@pytest.mark.parametrize("what", [*VERSIONED, *UNVERSIONED])
def test_a_value_of_no_bytes_is_called_that(what: str):
    """It is damage, and neither a tombstone nor the work of a newer version."""
    decode = (VERSIONED | UNVERSIONED)[what]
    with pytest.raises(DecodeError) as caught:
        decode(b"")
    assert not isinstance(caught.value, UnknownVersionError)
    assert caught.value.primary == f"{what} is a value of no bytes"
    assert "newer" not in str(caught.value)


@pytest.mark.parametrize("what", VERSIONED)
def test_a_message_without_version_is_not_called_newer(what: str):
    """Every message has its version from the first one on; a higher one is called newer."""
    with pytest.raises(DecodeError, match="has no version") as caught:
        VERSIONED[what](b"\x08\x00")
    assert not isinstance(caught.value, UnknownVersionError)
    with pytest.raises(UnknownVersionError, match="has version 9") as caught:
        VERSIONED[what](b"\x08\x09")
    assert "newer" in caught.value.hint
