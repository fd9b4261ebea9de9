"""Random histories of both kinds of transaction in one topic, written by hand."""

from random import Random

from stilltide.schemas.headers import TXN
from stilltide.schemas.values import TxnId
from tests.support.native.writer import NativeWriter
from tests.support.spark.topics import HandWriter, Written

KINDS = ("begin", "more", "more", "end", "end", "plain", "malformed", "native")


class MixedHistory:
    """Writes a topic step by step; coordinated transactions overlap and stay open until `end`.

    Args:
        bootstrap: address of the broker.
        topic: an existing topic.
        partitions: the topic's partition count.
        seed: what happens.
        native: whether there are native transactions.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, seed: int, *, native: bool = True
    ) -> None:
        self._random = Random(seed)
        self._partitions = partitions
        self._writer = HandWriter(bootstrap, topic)
        self._native = NativeWriter(bootstrap, topic) if native else None
        self._open: dict[tuple[TxnId, int], Written] = {}
        self._sequence = 0

    def act(self, count: int) -> None:
        """So many things happen."""
        for _ in range(count):
            self._act()

    def end(self) -> None:
        """Every open transaction ends."""
        while self._open:
            self._end_one()

    def _act(self) -> None:
        random, writer = self._random, self._writer
        kind, partition = random.choice(KINDS), random.randrange(self._partitions)
        if kind == "native" and self._native is not None:
            self._native.transaction(partition, random.randint(1, 4), commit=random.random() < 0.5)
        elif kind == "plain":
            writer.records(partition, random.randint(1, 3))
        elif kind == "malformed":
            writer.records(partition, 1, (TXN, b"short"))
        elif kind == "begin" or not self._open:
            self._sequence += 1
            txn = TxnId(1, self._sequence)
            self._open[txn, partition] = writer.of_txn(txn, partition, random.randint(1, 3))
        elif kind == "more":
            (txn, place), written = random.choice(list(self._open.items()))
            more = writer.of_txn(txn, place, random.randint(1, 3))
            self._open[txn, place] = Written(
                [*written.offsets, *more.offsets], [*written.content, *more.content]
            )
        else:
            self._end_one()

    def _end_one(self) -> None:
        (txn, place), written = self._random.choice(list(self._open.items()))
        del self._open[txn, place]
        if self._random.random() < 0.6:
            self._writer.commit(txn, place, written)
        else:
            self._writer.abort(txn, place)
