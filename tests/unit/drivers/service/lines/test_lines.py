"""Direct lines over real sockets, with a worker on the memory broker (J)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest

from stilltide.connectors.chance import SystemChance
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.core.service.direct_line import Way
from stilltide.pipeline.drivers.service.ask.direct_line import ClientLine
from stilltide.pipeline.drivers.service.own.direct_lines import UNREAD_BYTES_MAX, LineServer
from stilltide.schemas.coordinator.transactions import Greeting
from stilltide.schemas.service.direct_lines import (
    CLIENT,
    FRAME_BYTES_MAX,
    NONCE_BYTES,
    WORKER,
    framed,
    proof_of,
)
from stilltide.schemas.topics import TXN_LOG, TXN_REQUESTS, TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_memory import MemoryWorker, until

HOST = "127.0.0.1"
TOPIC = "orders"
ASKED = TopicPartition(TXN_REQUESTS, 0)
OWNER = TopicPartition(TXN_LOG, 0)


def new_nonce() -> bytes:
    """Bytes that nobody can guess."""
    return SystemChance().token(NONCE_BYTES)


@pytest.fixture
async def lines() -> AsyncIterator[LineServer]:
    """Takes lines on a free port."""
    server = LineServer(HOST, 0, advertised=HOST)
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def connector() -> MemoryConnector:
    """A broker with the topic."""
    connector = MemoryConnector(MemoryBroker())
    await connector.admin().ensure_topics([TopicSpec(TOPIC, 1)])
    return connector


@pytest.fixture
async def worker(connector: MemoryConnector, lines: LineServer) -> AsyncIterator[MemoryWorker]:
    """Its coordinator takes lines."""
    async with MemoryWorker(connector, lines=lines) as worker:
        yield worker


@pytest.fixture
async def client(
    connector: MemoryConnector, worker: MemoryWorker
) -> AsyncIterator[TransactionClient]:
    """A client that looks for lines."""
    async with TransactionClient(connector=connector, direct_line=True, resend_s=60) as client:
        yield client


def line_of(client: TransactionClient) -> ClientLine:
    """The line to its coordinator."""
    assert client._cluster is not None
    return client._cluster._requests.ways.lines[0]


async def commit(client: TransactionClient, count: int = 1) -> None:
    """Transactions, one after the other."""
    for number in range(count):
        async with client.transaction() as txn:
            await txn.send(TOPIC, b"%d" % number, partition=0)


async def with_line(client: TransactionClient) -> ClientLine:
    """Commits until there is a line."""
    line = line_of(client)
    await commit(client)
    await until(lambda: line.way is Way.LINE)
    return line


async def asked(connector: MemoryConnector) -> int:
    """How many records the requests topic has."""
    return (await connector.admin().end_offsets([ASKED]))[ASKED]


async def test_requests_and_answers_go_by_line(
    client: TransactionClient, connector: MemoryConnector
):
    """J1: nothing more is written to the requests topic."""
    await with_line(client)
    before = await asked(connector)
    await commit(client, 20)
    assert await asked(connector) == before


async def test_a_line_that_is_cut_loses_nothing(
    client: TransactionClient, connector: MemoryConnector, lines: LineServer
):
    """J3: what has no answer is repeated by topic at once; without that the test waits 60 s."""
    line = await with_line(client)
    before = await asked(connector)
    work = asyncio.create_task(commit(client, 30))
    for _ in range(20):  # turns of the loop, in which some are asked and not answered
        await asyncio.sleep(0)
    for writers in list(lines._lines.values()):
        for writer in writers.values():
            writer.transport.abort()
    await work
    assert await asked(connector) > before
    assert line.way is Way.TOPIC


async def test_an_owner_that_has_ended_ends_its_lines(
    client: TransactionClient, worker: MemoryWorker, lines: LineServer
):
    """J3: clients do not wait for their patience to end."""
    line = await with_line(client)
    await worker.owners.coordinators.stop()
    await until(lambda: line.way is Way.TOPIC)
    assert not lines.line_count


async def test_a_worker_without_lines_is_asked_by_topic(connector: MemoryConnector):
    """J2: it says so, and the client does not ask again soon."""
    async with (
        MemoryWorker(connector),
        TransactionClient(connector=connector, direct_line=True) as client,
    ):
        await commit(client, 5)
        assert line_of(client).way is Way.TOPIC


async def test_an_address_that_cannot_be_reached_is_given_up(connector: MemoryConnector):
    """J3: as behind a firewall."""
    lines = LineServer(HOST, advertised=HOST)
    await lines.start()
    await lines.close()  # nothing listens
    async with (
        MemoryWorker(connector, lines=lines),
        TransactionClient(connector=connector, direct_line=True) as client,
    ):
        line = line_of(client)
        await commit(client)
        await until(lambda: line.way is Way.TOPIC)
        await commit(client, 5)


async def proved(
    lines: LineServer, client_id: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A line of a client of this id."""
    nonce = new_nonce()
    greeting = lines.greet(OWNER, client_id, nonce)
    reader, writer = await asyncio.open_connection(HOST, greeting.port)
    writer.write(framed(greeting.nonce + proof_of(CLIENT, client_id, nonce, greeting.nonce)))
    assert len(await reader.readexactly(36)) == 36
    return reader, writer


async def test_answers_that_are_too_long_go_by_topic(worker: MemoryWorker, lines: LineServer):
    """J4: the client would refuse the frame, again and again."""
    client_id = new_nonce()
    _, writer = await proved(lines, client_id)
    assert lines.send(client_id, [bytes(1000)])
    assert not lines.send(client_id, [bytes(FRAME_BYTES_MAX)])
    writer.close()


async def test_clients_that_do_not_read_share_a_bound(worker: MemoryWorker, lines: LineServer):
    """J4: no line has too much waiting, and all lines together do not either."""
    clients = [new_nonce() for _ in range(12)]
    ends = [(await proved(lines, client_id))[1] for client_id in clients]
    await until(lambda: lines.line_count == len(clients))
    sent, closed = [bytes(FRAME_BYTES_MAX - 1000)], 0
    for _ in range(20):
        for client_id in clients:
            closed += not lines.send(client_id, sent)
            assert lines.unread_bytes <= UNREAD_BYTES_MAX + FRAME_BYTES_MAX
    assert closed, "an answer to a line that was closed goes by topic"
    for writer in ends:
        writer.close()


async def test_a_client_that_has_gone_leaves_no_line(connector: MemoryConnector):
    """J4: its machine has lost its power, so that nothing tells the worker."""
    lines = LineServer(HOST, advertised=HOST, silent_s=0.05)
    await lines.start()
    async with MemoryWorker(connector, lines=lines):
        _, writer = await proved(lines, new_nonce())
        await until(lambda: lines.line_count)
        await until(lambda: not lines.line_count)
        writer.close()
    await lines.close()


async def test_answers_that_cannot_be_read_end_the_line_alone(
    client: TransactionClient, lines: LineServer
):
    """J3: as of a worker of a later version; the client goes on by topic."""
    line = await with_line(client)
    assert client._cluster is not None
    assert lines.send(client._cluster.client_id, [b"\xff"])
    await until(lambda: line.way is Way.TOPIC)
    await commit(client, 3)


async def test_who_does_not_know_the_id_gets_no_line(
    worker: MemoryWorker, connector: MemoryConnector, lines: LineServer
):
    """J2: others can read the worker's nonce, and must not use it up either."""
    client_id, nonce = new_nonce(), new_nonce()
    greeting = lines.greet(OWNER, client_id, nonce)
    for known in (new_nonce(), client_id):
        reader, writer = await asyncio.open_connection(HOST, greeting.port)
        proof = proof_of(CLIENT, known, nonce, greeting.nonce)
        writer.write(framed(greeting.nonce + proof))
        answer = await reader.read(100)
        assert bool(answer) == (known == client_id)
        assert lines.line_count == (known == client_id)
        writer.close()
        await until(lambda: not lines.line_count)


async def test_a_stranger_at_the_address_gets_no_request(connector: MemoryConnector):
    """J2: the worker proves itself, too."""
    got: list[bytes] = []

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(bytes(32)))
        with suppress(OSError):
            got.append(await reader.read(-1))
        writer.close()

    lines = LineServer(HOST, advertised=HOST)
    port = int((await lines.start()).rpartition(":")[2])
    await lines.close()
    server = await asyncio.start_server(stranger, HOST, port)
    async with (
        MemoryWorker(connector, lines=lines),
        TransactionClient(connector=connector, direct_line=True) as client,
    ):
        line = line_of(client)
        await commit(client)
        await until(lambda: line.way is Way.TOPIC)
        await commit(client, 3)
        await until(lambda: got)
    assert [len(it) for it in got] == [4 + 16 + 32]
    server.close()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", framed(bytes(48)), b"\xff" * 4, b""])
async def test_a_stranger_who_connects_is_sent_away(lines: LineServer, said: bytes):
    """J2: without proof within a second the connection is closed."""
    greeting = lines.greet(OWNER, new_nonce(), new_nonce())
    reader, writer = await asyncio.open_connection(HOST, greeting.port)
    writer.write(said)
    with suppress(ConnectionError):
        assert await reader.read(100) == b""
    writer.close()


async def test_bytes_that_are_no_request_end_the_line(worker: MemoryWorker, lines: LineServer):
    """And nothing else; the owner serves on."""
    reader, writer = await proved(lines, new_nonce())
    writer.write(framed(b"\x0e\x01\x00\x01nonsense"))
    assert await reader.read(100) == b""
    writer.close()
    assert worker.coordinators[0].serving


async def test_a_worker_without_a_word_is_given_up():
    """J3: as one that is frozen; what has no answer is sent again, by topic."""
    client_id, nonces, worker_nonce = new_nonce(), asyncio.Queue[bytes](), new_nonce()
    repeated = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4 + 16 + 32)
        writer.write(framed(proof_of(WORKER, client_id, await nonces.get(), worker_nonce)))
        with suppress(OSError):
            await reader.read(-1)
        writer.close()

    async def greet(nonce: bytes) -> Greeting:
        nonces.put_nowait(nonce)
        return Greeting(HOST, server.sockets[0].getsockname()[1], worker_nonce)

    def no_answers(_: Sequence[bytes]) -> None:
        raise AssertionError("nobody answers")

    server = await asyncio.start_server(silent, HOST, 0)
    line = ClientLine(
        client_id,
        ask=greet,
        answered=no_answers,
        repeat=repeated.set,
        pending=lambda: True,
        chance=SystemChance(),
    )
    assert not line.send(b"first")
    await until(lambda: line.way is Way.LINE)
    assert line.send(b"second")
    assert line.way is Way.LINE
    async with asyncio.timeout(60):
        await repeated.wait()
    assert line.way is Way.TOPIC
    await line.close()
    server.close()
