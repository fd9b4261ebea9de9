"""Dead letters of messages that other programs wrote, with all bytes that Kafka allows.

What a user saw: an old producer wrote records without a timestamp (Kafka's -1). One of them failed
too often, and `stilltide dead-letter list` said of its dead letter that another program had written
it: `dead-letter.timestamp` was no number. `dead-letter replay --all` then refused all of the topic.
"""

import asyncio
from collections.abc import Sequence
from itertools import filterfalse
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.cli.main import run
from stilltide.pipeline.client import Message, Subscription
from stilltide.pipeline.client.dead_letters.moving import Selection, letters_of, move, plan
from stilltide.pipeline.errors import DeadLetterError
from stilltide.schemas.headers import Headers
from stilltide.schemas.pending_ack.dead_letters import decode
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.support.foreign_producer import ForeignRecord, write_foreign
from tests.support.processes.worker_process import WorkerProcess

WAIT_S = 120.0
GROUP = "billing"
ODD = [
    ForeignRecord(b"latin", b"k", [(b"stra\xdfe", b"1"), (b"plain", b"\xff")]),
    ForeignRecord(b"names", b"k", [(b"", b"nameless"), (b"twice", b"1"), (b"twice", b"2")]),
    ForeignRecord(None, b"tombstone"),
    ForeignRecord(b"", b""),
    ForeignRecord(b"keyless", None),
    ForeignRecord(b"epoch", timestamp_ms=0),
    ForeignRecord(b"timeless", timestamp_ms=-1),
    ForeignRecord(b"1969", timestamp_ms=-5000),
    ForeignRecord(b"origins", None, [(b"origin", b"https://shop.example/cart"), (b"origin", b"")]),
    ForeignRecord(b"letter", None, [(b"dead-letter.topic", b"a b"), (b"dead-letter.", b"")]),
]
VALUES = [("empty", b""), ("none", None)]
"""Headers of a last message: kafka-python writes none without a value."""
COUNT = len(ODD) + 1
STRANGERS = [
    *ODD,
    ForeignRecord(b"", None, [(b"dead-letter.topic", b"orders"), (b"dead-letter.offset", b"\xff")]),
    ForeignRecord(b"", None, [(b"dead-letter.\xdf", b"\x1b[2J")]),
]
"""Records that another program has written to the dead-letter topic."""
OWN = {"dead-letter.topic", "dead-letter.partition", "dead-letter.offset", "dead-letter.group"}


def content(
    messages: Sequence[Message],
) -> list[tuple[bytes | None, bytes | None, Headers]]:
    """Keys, values, and headers of the applications."""
    return [
        (
            it.key,
            it.value,
            [
                (name, value)
                for name, value in it.headers or ()
                if name != "txn" and not name.startswith("dead-letter.")
            ],
        )
        for it in messages
    ]


def expected() -> list[tuple[bytes | None, bytes | None, Headers]]:
    r"""What dead letters and replayed messages hold; `\xNN` for bytes of names (D9)."""
    odd: list[tuple[bytes | None, bytes | None, Headers]] = [
        (
            it.key,
            it.value,
            [
                (name.decode("utf-8", "backslashreplace"), value)
                for name, value in it.headers
                if not name.startswith(b"dead-letter.")
            ],
        )
        for it in ODD
    ]
    return [*odd, (None, b"values", VALUES)]


async def read(bootstrap: str, data: TopicPartition, first: int, end: int) -> list[Message]:
    """The committed records of a partition from an offset on."""
    subscription = Subscription([data.topic], group=uuid4().hex, bootstrap_servers=bootstrap)
    async with subscription, asyncio.timeout(WAIT_S):
        reading = subscription.read_to({data: EndOffset(end)})
        return [it async for it in reading if it.offset >= first]


async def prepare(bootstrap: str, topic: str, dead: str) -> None:
    """The odd messages in a topic, and its dead-letter topic."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic, 1, {"retention.ms": "-1"}), TopicSpec(dead, 1)])
    await admin.close()
    write_foreign(bootstrap, topic, ODD)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"values", headers=VALUES)
    assert producer.flush(30) == 0


async def fail_twice(bootstrap: str, topic: str, dead: str) -> list[Message]:
    """Has each message fail at both of its deliveries; returns the dead letters by origin."""
    delivered: list[Message] = []
    async with (
        Subscription(
            [topic],
            group=GROUP,
            bootstrap_servers=bootstrap,
            acknowledgements=True,
            deliveries_max=2,
            redelivery_delay_s=0.01,
        ) as failing,
        Subscription([dead], group=uuid4().hex, bootstrap_servers=bootstrap) as watch,
    ):
        async for message in failing:
            delivered.append(message)
            failing.negative_acknowledge(message, ValueError(repr(message.headers)))
            if len(delivered) == 2 * COUNT:
                break
        by_offset = [[it for it in delivered if it.offset == n] for n in range(COUNT)]
        assert all(one[0][:6] == one[1][:6] for one in by_offset)
        return sorted([await anext(watch) for _ in range(COUNT)], key=_place)


async def test_dead_letters_have_the_bytes_of_their_messages(
    bootstrap: str, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """G2: each message becomes a dead letter, which is read, listed and sent back as it was."""
    dead, data = f"{topic_name}-{GROUP}-DLQ", TopicPartition(topic_name, 0)
    connector = KafkaConnector(KafkaConfig(bootstrap))
    await prepare(bootstrap, topic_name, dead)
    log_path, member = tmp_path / "worker.log", f"w-{uuid4().hex[:8]}"
    async with (
        asyncio.timeout(WAIT_S),
        WorkerProcess(bootstrap, log_path, "--instance-id", member) as worker,
    ):
        await worker.serving()
        moved = await fail_twice(bootstrap, topic_name, dead)
        assert content(moved) == expected()
        said = [decode(it.headers) for it in moved]
        assert [it and (it.data, it.offset, it.group, it.deliveries) for it in said] == [
            (data, n, GROUP, 2) for n in range(COUNT)
        ]
        assert [it and it.timestamp_ms for it in said][5:8] == [0, None, -5000]
        listing = letters_of(connector, dead, Selection(), timeout_s=WAIT_S)
        offsets = [it.headers.offset async for it in listing if it.headers]
        assert sorted(offsets) == [*range(COUNT)]
        planned = await plan(connector, dead, Selection(), timeout_s=WAIT_S)
        assert planned.count == COUNT
        assert await move(connector, planned, replay=True) == COUNT
        back = await read(bootstrap, data, COUNT, 2 * COUNT)
        assert sorted(content(back), key=repr) == sorted(expected(), key=repr)
        write_foreign(bootstrap, dead, STRANGERS)
        await of_strangers(bootstrap, connector, dead, capsys)


async def of_strangers(
    bootstrap: str, connector: KafkaConnector, dead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records of others in a dead-letter topic: listed, never sent anywhere, and dropped."""
    servers = ["--bootstrap-servers", bootstrap]
    for words in (["-o", "json"], []):
        command = ["--log-level", "error", "dead-letter", "list", dead, *servers, *words]
        assert await asyncio.to_thread(run, command) == 0
    printed = capsys.readouterr().out
    assert printed.isprintable() or set(filterfalse(str.isprintable, printed)) == {"\n"}
    assert printed.count("no header of a dead letter") == 2 * len(ODD) - 2
    planned = await plan(connector, dead, Selection(), timeout_s=WAIT_S)
    assert planned.count == len(STRANGERS)
    with pytest.raises(DeadLetterError, match="no dead letter") as refused:
        await move(connector, planned, replay=True)
    assert refused.value.topic == dead
    assert await move(connector, planned, replay=False) == len(STRANGERS)


def _place(letter: Message) -> int:
    said = decode(letter.headers)
    assert said is not None
    return said.offset
