"""A client's requests on the memory broker: batched, repeated, given up, answered once."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.service.ask.requests import (
    COORDINATOR_SERVICE,
    WAKES_PER_TURN,
    Requests,
)
from stilltide.pipeline.drivers.service.own.replies import Replies
from stilltide.pipeline.errors import ClientFailedError, RequestTimeoutError
from stilltide.schemas.coordinator.requests import decode_request, encode_response
from stilltide.schemas.coordinator.transactions import (
    Answer,
    Listed,
    ListTransactions,
    Open,
    Opened,
)
from stilltide.schemas.errors import DecodeError, StilltideError
from stilltide.schemas.framing import decode_value, encode_batch
from stilltide.schemas.service.envelopes import Done, Request, Response, client_key
from stilltide.schemas.topics import TXN_LOG, TXN_REQUESTS, TXN_RESPONSES, system_topics
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_memory import MemoryWorker, until

pytestmark = pytest.mark.topics(*system_topics(coordinators=2, partitions=1))

REQUESTS = TopicPartition(TXN_REQUESTS, 0)
RESPONSES = TopicPartition(TXN_RESPONSES, 0)
OPEN = Open(30_000, 1, ())
SOON_S = 0.05
"""A time-out that is meant to run out."""


@pytest.fixture
async def writer(broker: MemoryBroker) -> LogWriter:
    """The client's writer."""
    return MemoryConnector(broker).writer("client")


async def opened(
    broker: MemoryBroker, writer: LogWriter, *, timeout_s: float = 10.0, resend_s: float = 10.0
) -> Requests:
    """A client's requests, listening."""
    made = Requests(
        COORDINATOR_SERVICE,
        MemoryConnector(broker),
        writer,
        name="client",
        request_timeout_s=timeout_s,
        resend_s=resend_s,
    )
    await made.open(partition_count=2, response_partition_count=1)
    return made


@pytest.fixture
async def client(broker: MemoryBroker, writer: LogWriter) -> AsyncIterator[Requests]:
    """A client that is patient."""
    made = await opened(broker, writer)
    yield made
    await made.close()


def sent(broker: MemoryBroker, coordinator: int = 0) -> list[list[Request]]:
    """What was asked of a coordinator: the requests of each record."""
    source = TopicPartition(TXN_REQUESTS, coordinator)
    return [
        [decode_request(data) for data in decode_value(it.value)] for it in broker.records(source)
    ]


def answer(broker: MemoryBroker, request: Request, answer: Answer, coordinator: int = 0) -> None:
    """Answers a request as a coordinator does."""
    data = encode_response(Response(request.number, coordinator, answer))
    broker.append(RESPONSES, client_key(request.client_id), data, None)


async def test_requests_of_one_moment_share_a_record(broker: MemoryBroker, client: Requests):
    """A: what is asked together travels together, numbered in the order of asking."""
    asking = [asyncio.create_task(client.ask(0, OPEN)) for _ in range(3)]
    await until(lambda: sent(broker))
    (batch,) = sent(broker)
    assert [it.number for it in batch] == [1, 2, 3]
    for request in reversed(batch):
        answer(broker, request, Opened(request.number, 1))
    assert await asyncio.gather(*asking) == [Opened(number, 1) for number in (1, 2, 3)]


async def test_coordinators_have_numbers_of_their_own(broker: MemoryBroker, client: Requests):
    """C1b: an answer belongs to the coordinator it came from."""
    asking = [asyncio.create_task(client.ask(it, OPEN)) for it in (0, 1)]
    await until(lambda: sent(broker, 0) and sent(broker, 1))
    first, second = (sent(broker, it)[0][0] for it in (0, 1))
    assert (first.number, second.number) == (1, 1)
    answer(broker, second, Opened(20, 1), coordinator=1)
    answer(broker, first, Opened(10, 1), coordinator=0)
    assert await asyncio.gather(*asking) == [Opened(10, 1), Opened(20, 1)]


async def test_answers_to_others_and_repeated_answers_are_passed_over(
    broker: MemoryBroker, client: Requests
):
    """C1b: only this process's own requests are answered, and each of them once."""
    asking = asyncio.create_task(client.ask(0, OPEN))
    await until(lambda: sent(broker))
    ((request,),) = sent(broker)
    answer(broker, request._replace(client_id=b"client" + bytes(16)), Opened(7, 1))
    answer(broker, request, Opened(0, 1))
    answer(broker, request, Opened(9, 1))
    assert await asking == Opened(0, 1)
    again = asyncio.create_task(client.ask(0, OPEN))
    await until(lambda: len(sent(broker)) > 1)
    (second,) = sent(broker)[1]
    assert (second.number, second.acked_through) == (2, 1)
    answer(broker, second, Opened(1, 1))
    assert await again == Opened(1, 1)


async def test_an_unanswered_request_is_sent_again(broker: MemoryBroker, writer: LogWriter):
    """C1b: the repeat has the same number, and one answer is enough."""
    client = await opened(broker, writer, resend_s=SOON_S)
    asking = asyncio.create_task(client.ask(0, OPEN))
    await until(lambda: len(sent(broker)) > 1)
    first, second = sent(broker)[:2]
    assert first == second
    answer(broker, first[0], Opened(0, 1))
    assert await asking == Opened(0, 1)
    await client.close()


async def test_a_request_that_was_not_delivered_is_sent_again(
    broker: MemoryBroker, writer: LogWriter
):
    """A write the broker refused costs a repeat, not the request."""
    client = await opened(broker, writer, resend_s=SOON_S)
    broker.down()
    asking = asyncio.create_task(client.ask(0, OPEN))
    await asyncio.sleep(0)
    broker.up()
    await until(lambda: sent(broker))
    answer(broker, sent(broker)[0][0], Opened(0, 1))
    assert await asking == Opened(0, 1)
    await client.close()


async def test_nobody_serving_is_a_time_out_with_a_hint(broker: MemoryBroker, writer: LogWriter):
    """Without a worker a request fails in time, and the error says what may be missing."""
    client = await opened(broker, writer, timeout_s=SOON_S)
    with pytest.raises(RequestTimeoutError, match=r"coordinator 1 within 0\.05 s") as caught:
        await client.ask(1, OPEN)
    assert "stilltide worker" in caught.value.hint
    await client.close()


async def test_an_answer_after_the_time_out_is_passed_over(broker: MemoryBroker, writer: LogWriter):
    """C1b: who gave up is not answered any more, and those after it are."""
    client = await opened(broker, writer, timeout_s=SOON_S)
    with pytest.raises(RequestTimeoutError):
        await client.ask(0, OPEN)
    asking = asyncio.create_task(client.ask(0, OPEN))
    await until(lambda: len(sent(broker)) > 1)
    answer(broker, sent(broker)[0][0], Opened(0, 1))
    answer(broker, sent(broker)[1][0], Opened(1, 1))
    assert await asking == Opened(1, 1)
    await client.close()


async def test_a_caller_that_is_cancelled_disturbs_nobody(broker: MemoryBroker, client: Requests):
    """An answer nobody waits for any more is dropped."""
    asking = [asyncio.create_task(client.ask(0, OPEN)) for _ in range(2)]
    await until(lambda: sent(broker))
    asking[0].cancel()
    for request in sent(broker)[0]:
        answer(broker, request, Opened(request.number, 1))
    assert await asking[1] == Opened(2, 1)


async def test_answers_that_are_none_are_passed_over(broker: MemoryBroker, client: Requests):
    """B10: garbage under the client's key, and an answer of a coordinator that there is not."""
    asking = asyncio.create_task(client.ask(0, OPEN))
    await until(lambda: sent(broker))
    request = sent(broker)[0][0]
    for value in (None, b"", b"\xff garbage"):
        broker.append(RESPONSES, client_key(request.client_id), value, None)
    answer(broker, request, Done(), coordinator=9)
    answer(broker, request, Opened(request.number, 1))
    assert await asking == Opened(1, 1)


async def test_answers_that_cannot_be_read_fail_every_request(
    broker: MemoryBroker, client: Requests
):
    """A response topic that is deleted is an error at once, not a time-out later."""
    asking = asyncio.create_task(client.ask(0, OPEN))
    await until(lambda: sent(broker))
    broker.delete_topic(TXN_RESPONSES)
    with pytest.raises(FatalError, match="does not exist"):
        await asking


async def test_a_client_that_failed_asks_nobody_again(broker: MemoryBroker, writer: LogWriter):
    """What is due to be sent again has been failed already."""
    client = await opened(broker, writer, resend_s=SOON_S)
    asking = asyncio.create_task(client.ask(0, OPEN))
    await until(lambda: sent(broker))
    broker.delete_topic(TXN_RESPONSES)
    with pytest.raises(FatalError, match="does not exist"):
        await asking
    before, now_s = len(sent(broker)), asyncio.get_running_loop().time
    due_s = now_s() + SOON_S
    await until(lambda: now_s() > due_s)
    assert len(sent(broker)) == before
    await client.close()


async def test_a_task_that_fails_in_the_background_ends_the_client(
    broker: MemoryBroker, writer: LogWriter
):
    """Nothing hangs when repeating fails: pending and later calls raise its error as the cause."""
    client = await opened(broker, writer, resend_s=SOON_S)
    asking = asyncio.create_task(client.ask(0, OPEN))
    with pytest.raises(ValueError, match="-1") as unsent:
        await client.ask(1, Open(-1, 1, ()))
    for call in (asking, client.ask(0, OPEN), client.failed()):
        with pytest.raises(ClientFailedError, match="ValueError") as caught:
            await asyncio.wait_for(call, 10)
        assert str(caught.value.__cause__) == str(unsent.value)
        assert caught.value.hint
    await client.close()


async def test_an_answer_that_fails_in_an_unforeseen_way_ends_the_client(
    broker: MemoryBroker, client: Requests
):
    """Listening never ends in silence either, and the first error is the one that stays."""

    def fail(_answer: object) -> None:
        raise LookupError("no such caller")

    client.tell(0, OPEN, fail)
    await until(lambda: sent(broker))
    asking = asyncio.create_task(client.ask(1, OPEN))
    answer(broker, sent(broker)[0][0], Opened(1, 1))
    with pytest.raises(ClientFailedError, match="LookupError: no such caller"):
        await asking
    await client.close()
    with pytest.raises(ClientFailedError):
        await client.ask(0, OPEN)


async def test_closing_fails_what_is_not_answered(broker: MemoryBroker, writer: LogWriter):
    """Nobody is left waiting on a client that was closed."""
    client = await opened(broker, writer)
    asking = asyncio.create_task(client.ask(0, OPEN))
    await until(lambda: sent(broker))
    await client.close()
    with pytest.raises(RequestTimeoutError, match="closed"):
        await asking
    with pytest.raises(RequestTimeoutError, match="closed"):
        await client.ask(0, OPEN)


async def test_an_outage_is_ridden_out(broker: MemoryBroker, writer: LogWriter):
    """Requests of before and during an outage are answered after it."""
    client = await opened(broker, writer, resend_s=SOON_S)
    async with MemoryWorker(MemoryConnector(broker), coordinators=2, partitions=1):
        broker.hold(TXN_RESPONSES)
        before = asyncio.create_task(client.ask(0, OPEN))
        await until(lambda: sent(broker))
        broker.down()
        during = asyncio.create_task(client.ask(0, OPEN))
        await asyncio.sleep(2 * SOON_S)
        broker.up()
        broker.release()
        assert {await before, await during} == {Opened(0, 1), Opened(1, 1)}
        async with Coordinators(MemoryConnector(broker), request_timeout_s=10) as operator:
            listed = await operator.ask(0, ListTransactions())
        assert isinstance(listed, Listed)
        assert [it.sequence for it in listed.transactions] == [0, 1]
    await client.close()


async def test_a_batch_of_answers_is_read_in_one(broker: MemoryBroker, client: Requests):
    """A coordinator's answers to one client may share a record."""
    asking = [asyncio.create_task(client.ask(0, OPEN)) for _ in range(2)]
    await until(lambda: sent(broker))
    (requests,) = sent(broker)
    answers = [encode_response(Response(it.number, 0, Opened(it.number, 1))) for it in requests]
    broker.append(RESPONSES, client_key(requests[0].client_id), encode_batch(answers), None)
    assert await asyncio.gather(*asking) == [Opened(1, 1), Opened(2, 1)]


async def test_who_is_told_hears_before_who_asks(broker: MemoryBroker, client: Requests):
    """C9: a caller that wakes up finds settled what was answered behind its own request."""
    heard: list[object] = []
    asking = asyncio.create_task(client.ask(0, OPEN))
    asking.add_done_callback(lambda _: heard.append("asked"))
    await asyncio.sleep(0)
    client.tell(0, OPEN, heard.append)
    await until(lambda: sent(broker))
    (requests,) = sent(broker)
    answers = [encode_response(Response(it.number, 0, Opened(it.number, 1))) for it in requests]
    broker.append(RESPONSES, client_key(requests[0].client_id), encode_batch(answers), None)
    assert await asking == Opened(1, 1)
    await until(lambda: len(heard) == 2)
    assert heard == [Opened(2, 1), "asked"]


async def test_every_caller_of_a_large_batch_wakes_up(broker: MemoryBroker, client: Requests):
    """They go on in groups, none is forgotten, and one that was cancelled holds nobody up."""
    count = 2 * WAKES_PER_TURN + 1
    asking = [asyncio.create_task(client.ask(0, OPEN)) for _ in range(count)]
    await until(lambda: sent(broker))
    (requests,) = sent(broker)
    asking[0].cancel()
    answers = [encode_response(Response(it.number, 0, Opened(it.number, 1))) for it in requests]
    broker.append(RESPONSES, client_key(requests[0].client_id), encode_batch(answers), None)
    assert await asyncio.gather(*asking[1:]) == [Opened(it, 1) for it in range(2, count + 1)]


async def test_what_is_told_to_a_closed_client_is_settled(broker: MemoryBroker, writer: LogWriter):
    """Nobody waits for it, and nothing is sent."""
    client = await opened(broker, writer)
    await client.close()
    settled: list[Answer | StilltideError] = []
    client.tell(0, OPEN, settled.append)
    assert isinstance(settled[0], RequestTimeoutError)
    assert sent(broker) == []


async def test_a_neighbour_is_asked_directly(broker: MemoryBroker, client: Requests):
    """B: its log makes the request durable, so the topic needs not."""
    async with MemoryWorker(MemoryConnector(broker), coordinators=2, partitions=1) as worker:
        client.ways.neighbours = {0: worker.coordinators[0]}
        assert await client.ask(0, OPEN) == Opened(0, 1)
        assert not sent(broker, 0)
        assert await client.ask(1, OPEN) == Opened(0, 1)  # no neighbour
        assert sent(broker, 1)


async def test_what_a_neighbour_loses_is_repeated_to_its_successor(
    broker: MemoryBroker, writer: LogWriter
):
    """C1b: one that serves no longer is passed by, as if it were another process."""
    client = await opened(broker, writer, resend_s=SOON_S)
    async with MemoryWorker(MemoryConnector(broker), coordinators=2, partitions=1) as worker:
        client.ways.neighbours = {0: worker.coordinators[0]}
        broker.hold(TXN_LOG)
        asking = asyncio.create_task(client.ask(0, OPEN))
        await until(lambda: worker.coordinators[0].stats().log.appends_in_flight)
        await worker.owners.coordinators.assign([1])
        await until(lambda: sent(broker))
        broker.release()
    async with MemoryWorker(MemoryConnector(broker), coordinators=2, partitions=1):
        assert await asking == Opened(0, 1)
    await client.close()


async def test_who_asks_in_this_process_is_answered_directly(
    broker: MemoryBroker, writer: LogWriter, client: Requests
):
    """Answers to others pass the topic; those of one turn to one client share a record."""
    replies = Replies(writer, askers=[client])
    asking = asyncio.create_task(client.ask(0, OPEN))
    await until(lambda: sent(broker))
    answers = [encode_response(Response(1, owner, Opened(7, 1))) for owner in (0, 1)]
    replies.add(client.client_id, 0, answers[0])
    another = b"another" + bytes(9)
    for data in answers:
        replies.add(another, 0, data)
    assert await asking == Opened(7, 1)
    await until(lambda: broker.records(RESPONSES))
    (record,) = broker.records(RESPONSES)
    assert (record.key, decode_value(record.value)) == (client_key(another), answers)


async def test_answers_may_leave_before_the_turn_is_over(broker: MemoryBroker, writer: LogWriter):
    """And leave once."""
    replies = Replies(writer)
    for data in (b"first", b"second"):
        replies.add(b"another", 0, data)
        replies.send()
    await writer.flush(timeout_s=10)
    values = [decode_value(it.value) for it in broker.records(RESPONSES)]
    assert values == [[b"first"], [b"second"]]


async def test_an_answer_after_the_end_is_passed_over(
    broker: MemoryBroker, writer: LogWriter, client: Requests
):
    """Owners in this process may end after who has asked them."""
    asking = asyncio.create_task(client.ask(0, OPEN))
    await until(lambda: sent(broker))
    await client.close()
    client.answers_received([encode_response(Response(1, 0, Opened(7, 1)))])
    with pytest.raises(RequestTimeoutError, match="closed"):
        await asking


async def test_a_neighbour_that_answers_nonsense_fails_every_request(
    broker: MemoryBroker, client: Requests
):
    """As if it had come through the topic, though with no place to name."""
    asking = asyncio.create_task(client.ask(0, OPEN))
    await until(lambda: sent(broker))
    client.answers_received([encode_response(Response(1, 9, Done()))])
    with pytest.raises(DecodeError, match="coordinator 9"):
        await asking
