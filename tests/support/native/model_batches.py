"""A `BatchReader` over model logs, and a memory broker whose logs have the same offsets."""

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.ports.readers import FETCH_BYTES, FetchedBatches
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.native.log import NativeLog

BATCHES = 3
"""Number of batches in one answer."""


class ModelBatches:
    """Serves the model logs; `mirror` has the broker follow them."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.logs: dict[TopicPartition, NativeLog] = {}
        self._broker = broker

    def mirror(self) -> None:
        """Gives each log of the broker the model's start and end; no transaction may be open."""
        for data, log in self.logs.items():
            assert log.stable == log.end
            mirrored = self._broker.log(data)
            assert mirrored is not None
            while mirrored.end < log.end:
                self._broker.append(data, None, b"mirrored", None)
            self._broker.delete_records(data, Offset(log.start))

    async def fetch(
        self,
        data: TopicPartition,
        position: Offset,
        *,
        committed: bool = True,
        bytes_max: int = FETCH_BYTES,
    ) -> FetchedBatches:
        """The batches that a leader would answer with."""
        assert committed
        assert bytes_max
        log = self.logs[data]
        if not log.start <= position <= log.end:
            raise OffsetOutOfRangeError("no such offset").at(*data, position)
        found = log.fetch(position, BATCHES, lambda _: 0)
        stable = EndOffset(log.stable)
        return FetchedBatches(
            found.batches, found.aborted, Offset(log.start), stable, EndOffset(log.end)
        )

    async def close(self) -> None:
        """Does nothing."""
