"""A coordinator on the memory broker, spoken to in the bytes of its topics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.coordinator import machine
from stilltide.schemas.coordinator import markers, txn_log
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.coordinator.requests import decode_response, encode_request
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    Answer,
    Describe,
    End,
    Ended,
    Listed,
    ListTransactions,
    Open,
    Opened,
    Registered,
    RequestBody,
    Written,
)
from stilltide.schemas.errors import DecodeError, UnknownVersionError
from stilltide.schemas.framing import decode_value, encode_batch
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.log_frames import Noop
from stilltide.schemas.service.envelopes import Done, Refused, Request, client_key
from stilltide.schemas.topics import (
    OPERATOR_REQUESTS,
    TXN_LOG,
    TXN_MARKERS,
    TXN_REQUESTS,
    TXN_RESPONSES,
    TopicSpec,
    system_partition,
)
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until
from tests.support.schemas.wire import too_deep

pytestmark = pytest.mark.topics(TopicSpec("orders", 2), TopicSpec("payments", 2))

CLIENT = b"0123456789abcdef"
KEY = client_key(CLIENT)
LOG = TopicPartition(TXN_LOG, 0)
RESPONSES = TopicPartition(TXN_RESPONSES, 1)
ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 1)
TIMEOUT_MS = 30_000
FIRST = TxnId(0, 0)


@pytest.fixture
async def worker(connector: MemoryConnector) -> AsyncIterator[MemoryWorker]:
    """A worker with one coordinator."""
    async with MemoryWorker(connector, txn_timeout_ms_max=60_000) as made:
        yield made


class Client:
    """A client that may say anything, again and again."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._last = 0

    def send(self, body: RequestBody, *, number: int = 0) -> int:
        """Appends a request; a number that is given makes it a repeat. Returns the number."""
        if not number:
            self._last = number = self._last + 1
        data = encode_request(Request(CLIENT, number, 0, RESPONSES.partition, body))
        topic = OPERATOR_REQUESTS if isinstance(body, ListTransactions) else TXN_REQUESTS
        self._broker.append(TopicPartition(topic, 0), KEY, data, None)
        return number

    async def ask(self, body: RequestBody, *, number: int = 0) -> Answer:
        """A request and the answer to it, not one that was there before."""
        before = len(self.answers(number)) if number else 0
        number = self.send(body, number=number)
        await until(lambda: len(self.answers(number)) > before)
        return self.answers(number)[-1]

    def answers(self, number: int) -> list[Answer]:
        """Every answer there is to a request."""
        values = [it.value for it in self._broker.records(RESPONSES) if it.key == KEY]
        responses = [decode_response(data) for value in values for data in decode_value(value)]
        return [it.answer for it in responses if it.number == number]


@pytest.fixture
async def client(broker: MemoryBroker) -> Client:
    """A client of the coordinator."""
    return Client(broker)


def registered(data: TopicPartition, start_offset: int = 0) -> Registered:
    """A registration; topic ids count from 1 in the order of creation."""
    return Registered(data, EndOffset(start_offset), bytes(15) + b"\x01")


def opening(*partitions: TopicPartition, timeout_ms: int = TIMEOUT_MS) -> Open:
    """A request to open one transaction."""
    return Open(timeout_ms, 1, tuple(map(registered, partitions)))


def committing(sequence: int, *written: Written, wait_visible: bool = False) -> End:
    """A request to commit."""
    return End(sequence, committed=True, written=written, wait_visible=wait_visible)


def aborting(sequence: int, *, wait_visible: bool = True) -> End:
    """A request to abort."""
    return End(sequence, committed=False, written=(), wait_visible=wait_visible)


def marker_of(broker: MemoryBroker, data: TopicPartition, txn: TxnId) -> list[Marker]:
    """Every marker written for a transaction on a partition."""
    source = TopicPartition(TXN_MARKERS, system_partition(data, PARTITIONS))
    found = [markers.decode(it.key, it.value) for it in broker.records(source)]
    return [
        it for it in found if isinstance(it, markers.Marker) and (it.data, it.txn) == (data, txn)
    ]


def logged(broker: MemoryBroker) -> list[str]:
    """What the log holds, by kind of record."""
    records = [data for it in broker.records(LOG) for data in decode_value(it.value)]
    return [type(txn_log.decode(data).body).__name__ for data in records]


async def test_a_commit_writes_a_marker_for_each_partition(
    broker: MemoryBroker, worker: MemoryWorker, client: Client
):
    """C4, C5: markers carry what the client wrote, and Ended follows in the log."""
    assert await client.ask(opening(ORDERS)) == Opened(0, 1)
    assert await client.ask(AddPartitions(0, (registered(PAYMENTS, 5),))) == Done()
    wrote = (
        Written(ORDERS, Offset(2), EndOffset(9), 3),
        Written(PAYMENTS, Offset(5), EndOffset(6), 1),
    )
    assert await client.ask(committing(0, *wrote, wait_visible=True)) == Done()
    (orders,), (payments,) = (marker_of(broker, it, FIRST) for it in (ORDERS, PAYMENTS))
    assert (orders.committed, orders.end_offset, orders.record_count) == (True, 9, 3)
    assert (payments.start_offset, payments.end_offset, payments.record_count) == (5, 6, 1)
    await until(lambda: logged(broker) == ["Fence", "Request", "Request", "Request", "Ended"])


async def test_ended_joins_the_entry_of_the_next_request(
    broker: MemoryBroker, worker: MemoryWorker, client: Client, monkeypatch: pytest.MonkeyPatch
):
    """C4: under load it costs no entry of its own."""
    monkeypatch.setattr(machine, "ENDED_DELAY_MS", 60_000)
    await client.ask(opening(ORDERS))
    wrote = Written(ORDERS, Offset(0), EndOffset(1), 1)
    await client.ask(committing(0, wrote, wait_visible=True))
    assert await client.ask(opening(ORDERS)) == Opened(1, 1)
    last = decode_value(broker.records(LOG)[-1].value)
    assert [type(txn_log.decode(it).body) for it in last] == [Ended, Request]


async def test_an_abort_reads_the_end_offset_afterwards(
    broker: MemoryBroker, worker: MemoryWorker, client: Client
):
    """C3: the end offset of an aborted transaction is the partition's, not the client's."""
    await client.ask(opening(ORDERS))
    for _ in range(3):
        broker.append(ORDERS, None, b"record", None)
    assert await client.ask(aborting(0)) == Done()
    (marker,) = marker_of(broker, ORDERS, FIRST)
    assert (marker.committed, marker.end_offset, marker.record_count) == (False, 3, 0)


async def test_an_abort_of_a_deleted_topic_has_no_end_offset(
    broker: MemoryBroker, worker: MemoryWorker, client: Client
):
    """E8: a partition that is gone does not keep its transaction from ending."""
    await client.ask(opening(ORDERS, PAYMENTS))
    broker.delete_topic("orders")
    assert await client.ask(aborting(0)) == Done()
    assert [it.end_offset for it in marker_of(broker, ORDERS, FIRST)] == [None]
    assert [it.end_offset for it in marker_of(broker, PAYMENTS, FIRST)] == [0]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (committing(7), "transaction 7 was never opened"),
        (
            opening(ORDERS, timeout_ms=0),
            "time-out of 0 ms; allowed are 1..60000 (setting txn_timeout_ms_max)",
        ),
        (
            opening(ORDERS, timeout_ms=60_001),
            "time-out of 60001 ms; allowed are 1..60000 (setting txn_timeout_ms_max)",
        ),
    ],
)
async def test_an_illegal_request_is_refused_and_changes_nothing(
    worker: MemoryWorker, client: Client, body: RequestBody, reason: str
):
    """C0: the refusal says why; the transaction that was open is open as before."""
    await client.ask(opening(ORDERS))
    answer = await client.ask(body)
    assert isinstance(answer, Refused)
    assert answer.reason == reason
    (one,) = (await listed(client)).transactions
    assert (one.sequence, one.state, one.partitions) == (0, "OPEN", (registered(ORDERS),))


async def listed(client: Client) -> Listed:
    """The transactions that have not ended."""
    answer = await client.ask(ListTransactions())
    assert isinstance(answer, Listed)
    return answer


async def test_an_answer_follows_an_entry_of_its_own(
    broker: MemoryBroker, worker: MemoryWorker, client: Client
):
    """C1: nothing is answered, not even a question, before the log has been written behind it."""
    broker.hold(TXN_LOG)
    numbers = [client.send(it) for it in (Describe(0), opening(ORDERS), opening(timeout_ms=0))]
    for _ in range(20):
        await asyncio.sleep(0)
    assert [client.answers(it) for it in numbers] == [[], [], []]
    broker.release()
    await until(lambda: all(client.answers(it) for it in numbers))
    assert logged(broker) == ["Fence", "Noop", "Request", "Noop"]


async def test_a_repeat_at_the_next_owner_has_one_effect(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker, client: Client
):
    """B1, C1b: who takes the log over knows what was answered, and opens nothing again."""
    assert await client.ask(opening(ORDERS)) == Opened(0, 1)
    worker.revoke()
    async with MemoryWorker(connector) as successor:  # is given every request anew
        await until(lambda: not worker.coordinators[0].serving)
        assert await client.ask(opening(ORDERS), number=1) == Opened(0, 1)
        assert await client.ask(opening(ORDERS)) == Opened(1, 1)
        assert not worker.coordinators[0].serving
        assert successor.coordinators[0].serving
    assert logged(broker).count("Fence") == 2


async def test_the_next_owner_drives_an_ending_transaction_to_its_end(
    broker: MemoryBroker, connector: MemoryConnector, client: Client
):
    """C4: a commit that was answered gets its markers, whoever is left to write them."""
    async with MemoryWorker(connector):
        await client.ask(opening(ORDERS))
        broker.hold(TXN_MARKERS)
        assert (
            await client.ask(committing(0, Written(ORDERS, Offset(0), EndOffset(1), 1))) == Done()
        )
        assert marker_of(broker, ORDERS, FIRST) == []
    broker.release()
    async with MemoryWorker(connector):
        await until(lambda: "Ended" in logged(broker))
    assert {it.committed for it in marker_of(broker, ORDERS, FIRST)} == {True}


async def test_an_open_transaction_is_aborted_when_its_time_is_over(
    broker: MemoryBroker, worker: MemoryWorker, client: Client
):
    """C7: nobody needs to ask; records written until then are covered by the marker."""
    await client.ask(opening(ORDERS, timeout_ms=30))
    broker.append(ORDERS, None, b"record", None)
    await until(lambda: marker_of(broker, ORDERS, FIRST))
    (marker,) = marker_of(broker, ORDERS, FIRST)
    assert (marker.committed, marker.end_offset) == (False, 1)
    refused = Refused("transaction 0 was aborted at its time-out")
    assert await client.ask(committing(0)) == refused


async def test_a_shorter_time_out_is_not_held_up_by_a_longer_one(
    broker: MemoryBroker, worker: MemoryWorker, client: Client
):
    """C7: time-outs end transactions in the order of their time, not of their opening."""
    await client.ask(opening(ORDERS))
    await client.ask(opening(ORDERS, timeout_ms=30))
    await until(lambda: marker_of(broker, ORDERS, TxnId(0, 1)))
    assert marker_of(broker, ORDERS, FIRST) == []


async def test_markers_whose_reports_were_lost_are_written_again(
    broker: MemoryBroker, worker: MemoryWorker, client: Client
):
    """C4: a transaction ends only when every marker is known to be durable; twice is harmless."""
    await client.ask(opening(ORDERS))
    broker.reports.lose(TXN_MARKERS)
    assert await client.ask(aborting(0)) == Done()
    first, second = marker_of(broker, ORDERS, FIRST)
    assert first == second


async def test_requests_before_it_serves_are_not_lost(
    broker: MemoryBroker, connector: MemoryConnector, client: Client
):
    """What arrives while the log is replayed is answered when the coordinator serves."""
    async with MemoryWorker(connector) as worker:
        driver = worker.coordinators[0]
        broker.append(LOG, None, broker.records(LOG)[0].value, None)
        await until(lambda: not driver.serving)
        number = client.send(opening(ORDERS))
        await until(lambda: driver._held)
        await until(lambda: client.answers(number))


@pytest.mark.parametrize("serving", [True, False])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, DecodeError),
        (b"\xff garbage", DecodeError),
        (encode_batch([b"\xff garbage"]), DecodeError),
        (b"\x0e\x01\x00\x02later", UnknownVersionError),
        (too_deep(encode_request(Request(CLIENT, 1, 0, 1, ListTransactions()))), DecodeError),
    ],
)
async def test_what_is_no_request_is_raised_to_who_brought_it(
    broker: MemoryBroker,
    worker: MemoryWorker,
    serving: bool,  # noqa: FBT001 - a parameter of the test
    value: bytes | None,
    kind: type[DecodeError],
):
    """Garbage is refused where its place is known, before anything of it reaches the log."""
    driver = worker.coordinators[0]
    if not serving:
        broker.append(LOG, None, broker.records(LOG)[0].value, None)
        await until(lambda: not driver.serving)
    before = len(broker.records(LOG))
    with pytest.raises(kind):
        driver.requests_received(value)
    assert len(broker.records(LOG)) == before


@pytest.mark.parametrize(
    "value",
    [txn_log.encode_own(Noop(), 0), b"\xff garbage"],
    ids=["not ours, though of our epoch", "no record"],
)
async def test_an_effective_entry_that_it_did_not_write_ends_the_coordinator(
    broker: MemoryBroker, worker: MemoryWorker, value: bytes
):
    """B6: what counts for every reader is never passed over; the error says where it lies."""
    offset = broker.append(LOG, None, value, EntryStamp(Offset(0), 1).to_headers())
    await until(lambda: worker.ends)
    error = worker.ends["coordinator 0"].error
    assert isinstance(error, DecodeError)
    assert error.place == f"{LOG}@{offset}"


async def test_a_full_queue_of_the_writer_delays_and_loses_nothing(
    broker: MemoryBroker, client: Client
):
    """Markers that find no room are written later; answers that find none are asked for again."""
    async with MemoryWorker(MemoryConnector(broker, writer_records_max=1)):
        client.send(opening(ORDERS))
        number = client.send(aborting(0))
        while not client.answers(number):
            client.send(aborting(0), number=number)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await until(lambda: client.answers(number))
        assert client.answers(number)[0] == Done()
    assert marker_of(broker, ORDERS, FIRST)
