"""Figures of a snapshot writer, for operators.

*Source*: docs/protocols E.
"""

from typing import NamedTuple

from stilltide.schemas.values import Offset


class SnapshotStats(NamedTuple):
    """The figures of a snapshot writer that serves.

    Attributes:
        data_partitions: number of data partitions that the writer knows.
        aborted_count: aborted transactions in the sets of all data partitions.
        max_read_position_lag: offsets from a data partition's max read position to its end; the
            largest of the last probe.
        requests_held: requests that wait for their snapshot.
        markers_read_to: end offset of the markers that were read.
        markers_trimmed_to: offset below which markers were trimmed; 0: none were.
        recovery_ms: time from the beginning of the ownership until the writer served.
    """

    data_partitions: int
    aborted_count: int
    max_read_position_lag: int
    requests_held: int
    markers_read_to: Offset
    markers_trimmed_to: Offset
    recovery_ms: int
