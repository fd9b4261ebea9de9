"""Runs the snapshot writer of one marker partition: takes requests, writes snapshots, answers.

*Source*: docs/protocols E, B4 (a new ownership begins after a random delay).
*Invariants*: a request is held until a durable snapshot answers it, also a snapshot of a later
ownership; a repetition of a held request is ignored.
"""

import asyncio
from collections.abc import Sequence

from stilltide.connectors.errors import FencedError, RecordRefusedError, RetriableError
from stilltide.pipeline.core.snapshots.stats import SnapshotStats
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.snapshots.ownership import OwnedSnapshots, SnapshotDeps
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.snapshots import SnapshotMetrics
from stilltide.schemas.coordinator.transactions import Refused
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.framing import decode_each
from stilltide.schemas.snapshots import requests as snapshot_requests
from stilltide.schemas.snapshots.requests import SnapshotAnswer, SnapshotRequest, SnapshotResponse
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)

REQUESTS_HELD_MAX = 10_000
"""Requests that wait for their snapshot; further ones are dropped, and clients repeat them."""


class SnapshotDriver:
    """One snapshot writer, for as long as its partition is assigned to this worker.

    Args:
        partition: number of the partition of txn-markers, txn-snapshots and snapshot-requests.
        deps: dependencies shared with other snapshot writers.
        metrics: metrics of this snapshot writer.
    """

    def __init__(self, partition: int, deps: SnapshotDeps, *, metrics: SnapshotMetrics) -> None:
        self.partition = partition
        self._deps = deps
        self._metrics = metrics
        self._owned: OwnedSnapshots | None = None
        self._requests = 0
        self._held: dict[int, SnapshotRequest] = {}
        self._numbers: dict[SnapshotRequest, int] = {}
        self._began_s = 0.0
        self._recovery_ms = 0

    @property
    def serving(self) -> bool:
        """Whether it writes snapshots now; until then it holds requests."""
        return self._owned is not None and self._owned.machine is not None

    @property
    def data_topics(self) -> set[str]:
        """The topics with records of coordinated transactions, as far as it knows them."""
        machine = None if self._owned is None else self._owned.machine
        return set() if machine is None else {data.topic for data in machine.buffers}

    async def run(self) -> None:
        """Writes snapshots until an error ends the ownership.

        Raises:
            MarkersTrimmedError, SnapshotPartError: the known outcomes have a gap; nothing is
                written.
            MarkerConflictError, DecodeError: a record that no coordinator or snapshot writer
                writes; names its place.
            FatalError: a topic cannot be read or written.
        """
        self._began_s = asyncio.get_running_loop().time()
        self._owned = OwnedSnapshots(
            self.partition,
            self._deps,
            metrics=self._metrics,
            serving=self._serve,
            taken=self._taken,
        )
        await self._owned.run()

    def passes(self, error: StilltideError) -> bool:
        """Whether another writer has taken over, or a write failed."""
        if isinstance(error, FencedError):
            self._metrics.fenced.inc()
        elif isinstance(error, RecordRefusedError | RetriableError):
            self._metrics.failed.inc()
        else:
            return False
        return True

    def requests_received(self, value: bytes | None, *, operator: bool = False) -> None:
        """Takes one value of snapshot-requests: a framed batch of requests, or a bare request.

        Raises:
            DecodeError: the value, or a part of it, is no request; the other parts were taken.
        """
        del operator  # everybody who may ask for snapshots may ask for all of them
        received, failed = decode_each(value, snapshot_requests.decode_request)
        self._metrics.requests.inc(len(received))
        for request in received:
            self._request_received(request)
        if failed is not None:
            raise failed

    def refuse(self, value: bytes | None, end: OwnerEnd) -> None:
        """Refuses requests while this writer has ended (B8); none of them changes anything.

        Raises:
            DecodeError: the value, or a part of it, is no request.
        """
        received, failed = decode_each(value, snapshot_requests.decode_request)
        reason = end.text(asyncio.get_running_loop().time())
        for request in received:
            self._answer(request, request.refusal or Refused(reason))
        if failed is not None:
            raise failed

    def stats(self) -> SnapshotStats:
        """The writer's figures, only while it serves; takes 1 us for each data partition."""
        owned = self._owned
        assert owned is not None
        machine = owned.machine
        assert machine is not None
        return SnapshotStats(
            len(machine.buffers),
            sum(len(it.aborted) for it in machine.buffers.values()),
            owned.lag(),
            len(self._held),
            machine.position,
            owned.trimmed_to,
            self._recovery_ms,
        )

    def _request_received(self, request: SnapshotRequest) -> None:
        if request.refusal is not None:
            self._answer(request, request.refusal)
            return
        count = self._deps.partition_count
        if system_partition(request.data, count) != self.partition:
            owner = system_partition(request.data, count)
            reason = f"snapshot writer {owner} of {count} serves {request.data}"
            self._answer(request, Refused(f"{reason}, and this is writer {self.partition}"))
            return
        if request in self._numbers:
            return
        if len(self._held) >= REQUESTS_HELD_MAX:
            log.warning("snapshot_request_dropped", partition=self.partition, held=len(self._held))
            return
        self._requests += 1
        self._numbers[request] = self._requests
        self._held[self._requests] = request
        if self.serving:
            self._ask(self._requests, request.data)

    def _ask(self, number: int, data: TopicPartition) -> None:
        assert self._owned is not None
        self._owned.requested(number, data)

    def _serve(self) -> None:
        replayed_ms = round((asyncio.get_running_loop().time() - self._began_s) * 1000)
        self._recovery_ms = replayed_ms
        log.info("snapshot_writer_serving", partition=self.partition, replayed_ms=replayed_ms)
        for number, request in list(self._held.items()):
            self._ask(number, request.data)

    def _taken(self, requests: Sequence[int]) -> None:
        assert self._owned is not None
        machine = self._owned.machine
        assert machine is not None
        for number in requests:
            request = self._held.pop(number)
            del self._numbers[request]
            buffer = machine.buffers.get(request.data)
            summary = None if buffer is None else buffer.summary
            self._answer(request, summary or Refused(f"{request.data} does not exist"))

    def _answer(self, request: SnapshotRequest, answer: SnapshotAnswer) -> None:
        response = SnapshotResponse(request.number, self.partition, answer)
        data = snapshot_requests.encode_response(response)
        self._metrics.answers.inc()
        self._deps.replies.add(request.client_id, request.reply_partition, data)
