"""C10, C15: a request fails its sender and nobody else, whatever the request holds."""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.schemas.coordinator.requests import (
    decode_response,
    encode_request,
)
from stilltide.schemas.coordinator.transactions import (
    Abort,
    Answer,
    DescribeCoordinator,
    ListTransactions,
    Open,
    Opened,
    Registered,
    RequestBody,
)
from stilltide.schemas.framing import decode_value, encode_batch
from stilltide.schemas.service.envelopes import RefusalCode, Refused, Request, client_key
from stilltide.schemas.topics import OPERATOR_REQUESTS, TXN_REQUESTS, TXN_RESPONSES, TopicSpec
from stilltide.schemas.v1 import requests_pb2 as pb
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.support.coordinator.worker_memory import MemoryWorker, until

CLIENT = b"client-012345678"
RESPONSES = TopicPartition(TXN_RESPONSES, 1)
OPEN = Open(30_000, 1, ())
LATER_KIND = bytes.fromhex("fa0600")
"""Field 111 of a request, a kind that a later version may have."""


@pytest.fixture
async def worker(broker: MemoryBroker, connector: MemoryConnector) -> AsyncIterator[MemoryWorker]:
    """A worker with one coordinator, and a data topic of two partitions."""
    broker.create_topic(TopicSpec("orders", 2))
    async with MemoryWorker(connector) as made:
        yield made


def encoded(body: RequestBody, number: int, client: bytes = CLIENT) -> bytes:
    """Bytes of a request."""
    return encode_request(Request(client, number, 0, RESPONSES.partition, body))


def later(number: int) -> bytes:
    """Bytes of a request of a kind that does not exist."""
    without = pb.Request(client_id=CLIENT, number=number, reply_partition=RESPONSES.partition)
    return without.SerializeToString() + LATER_KIND


def send(broker: MemoryBroker, *requests: bytes, topic: str = TXN_REQUESTS) -> None:
    """Appends requests as one record."""
    broker.append(TopicPartition(topic, 0), b"k", encode_batch(requests), None)


async def answers(broker: MemoryBroker, key: bytes, count: int) -> dict[int, Answer]:
    """That many answers to a client, by number."""

    def found() -> dict[int, Answer]:
        values = [it.value for it in broker.records(RESPONSES) if it.key == key]
        responses = [decode_response(data) for value in values for data in decode_value(value)]
        return {it.number: it.answer for it in responses}

    await until(lambda: len(found()) >= count)
    return found()


def code(answer: Answer) -> RefusalCode:
    """Why a request was refused."""
    assert isinstance(answer, Refused)
    return answer.code


async def test_c10_a_kind_that_does_not_exist_is_refused_alone(
    broker: MemoryBroker, worker: MemoryWorker
):
    """C10: the other requests of the record are served, and bytes of nobody are passed over."""
    send(broker, encoded(OPEN, 1), later(2), b"\xff garbage", encoded(OPEN, 3))
    given = await answers(broker, client_key(CLIENT), 3)
    assert given[1] == Opened(0, 1)
    assert code(given[2]) is RefusalCode.UNSUPPORTED
    assert given[3] == Opened(1, 1)


@pytest.mark.parametrize("body", [Abort(0), ListTransactions(), DescribeCoordinator()])
async def test_c15_operators_requests_have_their_topic(
    broker: MemoryBroker, worker: MemoryWorker, body: RequestBody
):
    """C15: refused where applications may write, and clients' requests where operators do."""
    send(broker, encoded(OPEN, 1), encoded(body, 2))
    assert code((await answers(broker, client_key(CLIENT), 2))[2]) is RefusalCode.OPERATORS_ONLY
    send(broker, encoded(OPEN, 3), topic=OPERATOR_REQUESTS)
    assert code((await answers(broker, client_key(CLIENT), 3))[3]) is RefusalCode.UNSUPPORTED


@pytest.mark.parametrize("data", [TopicPartition("nowhere", 0), TopicPartition("orders", 2)])
async def test_c16_what_does_not_exist_is_not_registered(
    broker: MemoryBroker, worker: MemoryWorker, data: TopicPartition
):
    """C16: a topic, or a partition, that there is not; what exists is found by the same look."""
    good = Registered(TopicPartition("orders", 1), EndOffset(0), bytes(16))
    bad = good._replace(data=data)
    send(
        broker,
        encoded(Open(30_000, 1, (good, bad)), 1),
        encoded(Open(30_000, 1, (good,)), 2),
    )
    given = await answers(broker, client_key(CLIENT), 2)
    assert code(given[1]) is RefusalCode.MALFORMED
    assert given[2] == Opened(0, 1)
