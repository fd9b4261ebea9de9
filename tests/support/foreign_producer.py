"""Writes records with bytes and times that Stilltide's own clients would not write."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from kafka import KafkaProducer

_producer: Any = KafkaProducer  # without types


class ForeignRecord(NamedTuple):
    """A record of another program.

    Attributes:
        value: its value.
        key: its key.
        headers: names in bytes, and values.
        timestamp_ms: its timestamp; None: now.
        partition: number of its partition.
    """

    value: bytes | None = b"v"
    key: bytes | None = b"k"
    headers: Sequence[tuple[bytes, bytes]] = ()
    timestamp_ms: int | None = None
    partition: int = 0


class HeaderName(str):
    """A header name that kafka-python writes as the bytes that it was made of."""

    __slots__ = ()

    @classmethod
    def of(cls, name: bytes) -> "HeaderName":
        """The name of these bytes."""
        return cls(name.decode("utf-8", "surrogateescape"))

    def encode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> bytes:
        """The bytes."""
        return super().encode(encoding, errors)


def write_foreign(
    bootstrap: str, topic: str, records: Iterable[ForeignRecord], **options: object
) -> None:
    """Writes records and returns when all are durable; options are kafka-python's."""
    producer = _producer(bootstrap_servers=bootstrap, **options)
    try:
        sent = [
            producer.send(
                topic,
                value,
                key,
                [(HeaderName.of(name), it) for name, it in headers],
                partition,
                timestamp_ms,
            )
            for value, key, headers, timestamp_ms, partition in records
        ]
        for report in cast("list[Any]", sent):
            report.get(60)
    finally:
        producer.close()
