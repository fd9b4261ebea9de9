"""A snapshot writer without a worker, with its own clock, that can be held or die in a write.

The program `python -m tests.support.snapshots.lone_writer BOOTSTRAP RECORDS` writes RECORDS records
of its first snapshot and kills itself. The transaction stays open, or is committed if the snapshot
has no more records.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from prometheus_client import CollectorRegistry

from stilltide.connectors.clock import Clock, SystemClock
from stilltide.connectors.errors import FencedError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.kafka.producer.native_producer import KafkaTransactionalWriter
from stilltide.connectors.ports.readers import NewRecord
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.service.ask.requests import COORDINATOR_OPERATOR_SERVICE, OwnerLine
from stilltide.pipeline.drivers.service.own.owner import OwnerDeps
from stilltide.pipeline.drivers.service.own.replies import Replies
from stilltide.pipeline.drivers.snapshots.owner import SnapshotOwner
from stilltide.pipeline.metrics.worker import WorkerMetrics

COORDINATORS = 2
PARTITIONS = 1
"""Partition count of the workers that run at the same time."""

PART_BYTES_MAX = 64
"""Size at which a few ids fill a part."""

EAGER = SnapshotLimits(
    changes_max=1, interval_ms=1, part_bytes_max=PART_BYTES_MAX, marker_retention_ms=0
)
WAIT_S = 240.0


class FastClock:
    """Clocks that run faster, so that minutes take seconds."""

    def __init__(self, factor: int) -> None:
        self._factor = factor
        self._began_s = time.time()

    def now_ms(self) -> int:
        """The fast time, milliseconds since 1970."""
        gone_s = time.time() - self._began_s
        return round((self._began_s + self._factor * gone_s) * 1000)

    monotonic_ms = now_ms


class HeldWriter(KafkaTransactionalWriter):
    """Waits before each write until `may_write` is set."""

    may_write: asyncio.Event
    waits: asyncio.Event

    async def write(self, records: Sequence[NewRecord]) -> None:
        """See `TransactionalWriter.write`."""
        self.waits.set()
        await self.may_write.wait()
        await super().write(records)


class HoldingConnector(KafkaConnector):
    """Its transactional writers wait for `may_write`, and then set `waits`."""

    def __init__(self, config: KafkaConfig) -> None:
        super().__init__(config)
        self._held_config = config
        self.may_write, self.waits = asyncio.Event(), asyncio.Event()

    def transactional_writer(self, transactional_id: str) -> HeldWriter:
        """A writer that waits before each write."""
        made = HeldWriter(self._held_config, transactional_id, self._transactional_ids)
        made.may_write, made.waits = self.may_write, self.waits
        return made


class DyingWriter(KafkaTransactionalWriter):
    """Kills its process within its first write."""

    records_max = 0

    def _write(self, records: Sequence[NewRecord]) -> None:
        if self.records_max > len(records):
            super()._write(records)
        else:
            producer = self._producer
            assert producer is not None
            producer.begin_transaction()
            for record in records[: self.records_max]:
                self._produce(producer, record)
            producer.flush()
        os.kill(os.getpid(), signal.SIGKILL)


class DyingConnector(KafkaConnector):
    """A connector whose transactional writers kill the process."""

    def __init__(self, config: KafkaConfig, records_max: int) -> None:
        super().__init__(config)
        self._dying_config = config
        self._records_max = records_max

    def transactional_writer(self, transactional_id: str) -> DyingWriter:
        """A writer that kills the process after `records_max` records."""
        made = DyingWriter(self._dying_config, transactional_id, self._transactional_ids)
        made.records_max = self._records_max
        return made


@asynccontextmanager
async def lone_writer(
    connector: KafkaConnector, limits: SnapshotLimits, clock: Clock | None = None
) -> AsyncIterator[SnapshotOwner]:
    """Runs a writer from entry to exit, or until it is replaced; never restarts it."""
    admin, writer = connector.admin(), connector.writer("lone")
    line = OwnerLine(
        COORDINATOR_OPERATOR_SERVICE, None, connector, name="lone", request_timeout_s=WAIT_S
    )
    async with line:
        deps = OwnerDeps(
            connector=connector,
            admin=admin,
            writer=writer,
            replies=Replies(writer),
            clock=clock or SystemClock(),
            partition_count=PARTITIONS,
        )
        metrics = WorkerMetrics("lone", CollectorRegistry()).snapshots(0)
        driver = SnapshotOwner(0, deps, coordinators=line.requests, limits=limits, metrics=metrics)
        task = asyncio.create_task(driver.run())
        try:
            yield driver
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, FencedError):
                await task
            await writer.close()
            await admin.close()


async def _main(bootstrap: str, records_max: int) -> None:
    connector = DyingConnector(KafkaConfig(bootstrap), records_max)
    async with lone_writer(connector, EAGER):
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
