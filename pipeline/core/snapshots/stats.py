"""What a snapshot writer tells of itself.

*Source*: docs/protocols E.
"""

from typing import NamedTuple

from stilltide.schemas.values import Offset


class SnapshotStats(NamedTuple):
    """The figures of a snapshot writer that serves.

    Attributes:
        data_partitions: that it knows.
        aborted_count: aborted transactions that it knows, on all of them.
        max_read_position_lag: offsets from the max read position of the last snapshot to the end
            of its data partition; the largest of the last probe.
        requests_held: requests that wait for their snapshot.
        markers_read_to: it has read every marker below.
        markers_trimmed_to: up to where it has trimmed them; 0 if it has not.
        recovery_ms: from the beginning of the ownership until it served.
    """

    data_partitions: int
    aborted_count: int
    max_read_position_lag: int
    requests_held: int
    markers_read_to: Offset
    markers_trimmed_to: Offset
    recovery_ms: int
