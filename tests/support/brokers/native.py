"""Kafka's own transactions without end: what librdkafka's producer does on the same cluster."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Producer

from stilltide.connectors.kafka.logs import ClientLog, LineLimit
from tests.support.brokers.progress import Progress
from tests.support.brokers.transactions import ABORTED_EACH, CALLERS, EVERY_S
from tests.support.processes.worker_process import PARTITIONS

CALL_S = 30.0
GIVES_UP_S = 120.0


class NativeTransactions:
    """Producers with librdkafka's defaults, each on a thread of its own, until `stop`.

    Args:
        bootstrap: the cluster.
        topic: topic of one record in each partition for each transaction.
        name: prefix of the transactional ids.
        callers: number of producers.
        every_s: pause of a producer between two transactions.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        name: str,
        *,
        callers: int = CALLERS,
        every_s: float = EVERY_S,
    ) -> None:
        self.progress = Progress("native transactions")
        self.errors: list[str] = []
        self._options = {"bootstrap.servers": bootstrap, "linger.ms": 0}
        self._topic, self._name = topic, name
        self._callers, self._every_s = callers, every_s
        self._numbers = itertools.count()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Begins no further transaction; `run` returns when the begun ones have ended."""
        self._stopped.set()

    async def run(self) -> None:
        """Runs transactions until `stop`."""
        loop = asyncio.get_running_loop()

        def committed(caller: int) -> None:
            loop.call_soon_threadsafe(self.progress.step, caller, time.monotonic())

        try:
            async with asyncio.TaskGroup() as callers:
                for caller in range(self._callers):
                    callers.create_task(asyncio.to_thread(self._call, caller, committed))
        finally:
            self._stopped.set()

    def _call(self, caller: int, committed: Callable[[int], None]) -> None:
        producer: Producer | None = None
        while not self._stopped.wait(self._every_s):
            if producer is None:
                producer = self._made(caller)
            try:
                if self._one(producer, next(self._numbers)):
                    committed(caller)
            except KafkaException as error:
                self.errors.append(str(error))
                if not self._aborted(producer, error):
                    producer = None

    def _made(self, caller: int) -> Producer:
        name = f"{self._name}-{caller}"
        options = {**self._options, "transactional.id": name}
        producer = Producer(options, logger=ClientLog(name, LineLimit()))
        self._insist(producer.init_transactions)
        return producer

    def _one(self, producer: Producer, number: int) -> bool:
        """One transaction; whether it committed."""
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(self._topic, b"%d" % number, partition=partition)
        commits = number % ABORTED_EACH != 0
        if not commits:
            producer.flush(CALL_S)
        self._insist(producer.commit_transaction if commits else producer.abort_transaction)
        return commits

    def _aborted(self, producer: Producer, error: KafkaException) -> bool:
        """Aborts what failed; False if the producer can do no more."""
        if not _error_of(error).txn_requires_abort():
            return False
        try:
            self._insist(producer.abort_transaction)
        except KafkaException as again:
            self.errors.append(str(again))
            return False
        return True

    def _insist(self, call: Callable[[float], None]) -> None:
        """Repeats a call that may be repeated, as the client's manual asks."""
        until_s = time.monotonic() + GIVES_UP_S
        while True:
            try:
                call(CALL_S)
            except KafkaException as error:
                if not _error_of(error).retriable() or time.monotonic() > until_s:
                    raise
            else:
                return


def _error_of(error: KafkaException) -> KafkaError:
    return error.args[0]
