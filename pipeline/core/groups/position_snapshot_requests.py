"""Requests of other clusters for this cluster's decided end.

*Source*: docs/protocols I2, I3.
*Invariants*: at most one request of each cluster is open, the newest; a request that was answered
is not opened again, not even by the next controller, which reads the answers of former ones.
"""

from stilltide.schemas.replication.signals import PositionSnapshotRequest, PositionSnapshotResponse
from stilltide.schemas.values import ClusterName


class PositionRequests:
    """The requests of other clusters that have no answer yet."""

    def __init__(self) -> None:
        self.open: dict[ClusterName, PositionSnapshotRequest] = {}
        self._answers: dict[ClusterName, PositionSnapshotResponse] = {}  # the last one to each

    def read(self, asker: ClusterName, request: PositionSnapshotRequest) -> bool:
        """Takes a request; False if the same request is open or was answered."""
        answer = self._answers.get(asker)
        if answer is not None and answer[:2] == request[:2]:
            return False
        before = self.open.get(asker)
        self.open[asker] = request
        return before is None or before[:2] != request[:2]

    def answered(self, asker: ClusterName, answer: PositionSnapshotResponse) -> None:
        """Takes an answer of this cluster; closes the answered request."""
        self._answers[asker] = answer
        request = self.open.get(asker)
        if request is not None and request[:2] == answer[:2]:
            del self.open[asker]
