"""Requests that are refused without saying what was refused, or why.

What a user saw: "the coordinator refused the request", in a log that keeps the first line of an
error; "the acknowledgement was refused: TOO_MANY" for a client whose id had 15 bytes; and no answer
at all, until the time-out, for a request to a controller of groups that had no target.
"""

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.coordinator.admission import ClientLimits
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.coordinator.operator import refused
from stilltide.schemas.coordinator import requests as txn_requests
from stilltide.schemas.coordinator.markers import Probe
from stilltide.schemas.coordinator.prepared_tokens import hash_of
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AddPartitions,
    AddSubscriptions,
    Describe,
    DescribeCoordinator,
    End,
    EndPrepared,
    Hello,
    ListTransactions,
    Open,
    Prepare,
    Registered,
    Release,
    RequestBody,
    WriteBarrier,
    Written,
)
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.framing import decode_value, encode_batch
from stilltide.schemas.pending_ack import codec as ack_codec
from stilltide.schemas.pending_ack.acknowledgements import (
    AckBody,
    Acknowledge,
    AckQuestion,
    Attach,
    CursorMoved,
    DescribeStore,
    Settle,
)
from stilltide.schemas.replication import requests as group_codec
from stilltide.schemas.replication.requests import AtOffset, GroupQuestion, ResetGroup
from stilltide.schemas.service.envelopes import RefusalCode, Refused, Request, client_key, codes_of
from stilltide.schemas.snapshots import requests as snapshot_codec
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    OPERATOR_ACK_REQUESTS,
    OPERATOR_REQUESTS,
    SNAPSHOT_REQUESTS,
    TXN_REQUESTS,
    TXN_RESPONSES,
    TopicSpec,
    system_partition,
)
from stilltide.schemas.v1 import requests_pb2 as pb
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId
from tests.support.coordinator.worker_memory import MemoryWorker, until
from tests.support.groups.clusters import DATA, replicated

CLIENT, OTHER = b"client-012345678", b"other--012345678"
SHORT, LONG = b"fifteen bytes !", b"\xff" * 40
ORDERS, NOWHERE = TopicPartition("orders", 0), TopicPartition("nowhere", 0)
ACCOUNTS = TopicPartition("accounts", 0)
MEMBER = b"m" * 16
HERE = SubscriptionId(ORDERS, "billing")
TXN = TxnId(0, 0)
RESPONSES = TopicPartition(TXN_RESPONSES, 0)


def registered(data: TopicPartition, topic_id: bytes = bytes(16)) -> Registered:
    """A registration."""
    return Registered(data, EndOffset(0), topic_id)


def to_coordinator(body: RequestBody, client: bytes = CLIENT, number: int = 1) -> bytes:
    """Bytes of a request to a coordinator."""
    return txn_requests.encode_request(Request(client, number, 0, 0, body))


def to_store(
    body: AckBody, client: bytes = CLIENT, about: SubscriptionId | None = HERE, number: int = 1
) -> bytes:
    """Bytes of a request to a pending-ack store."""
    return ack_codec.encode_request(Request(client, number, 0, 0, AckQuestion(about, body)))


def to_writer(data: TopicPartition, client: bytes = CLIENT) -> bytes:
    """Bytes of a request to a snapshot writer."""
    return snapshot_codec.encode_request(Request(client, 1, 0, 0, data))


class Case(NamedTuple):
    """Requests of which the last is refused: their topic, bytes, client, code and words."""

    topic: str
    requests: tuple[bytes, ...]
    code: str
    words: str
    client: bytes = CLIENT
    partition: int = 0


OPEN = Open(30_000, 1, ())
END = End(0, committed=True, written=(), wait_visible=False)
ABORT = End(0, committed=False, written=(), wait_visible=False)
HUGE = 2**63
SECRET = b"s" * 32
PREPARE = Prepare(0, (), None, hash_of(SECRET))
COMMIT_PREPARED = EndPrepared(0, True, SECRET, wait_visible=False)
ABORT_PREPARED = EndPrepared(0, False, SECRET, wait_visible=False)


def open_and(*bodies: RequestBody, code: str, words: str, client: bytes = CLIENT) -> Case:
    """A transaction is opened by CLIENT, then `client` asks for this."""
    asked = [to_coordinator(body, client, number) for number, body in enumerate(bodies, 2)]
    return Case(TXN_REQUESTS, (to_coordinator(OPEN), *asked), code, words, client)


def alone(body: RequestBody, code: str, words: str, client: bytes = CLIENT) -> Case:
    """A single request to a coordinator."""
    return Case(TXN_REQUESTS, (to_coordinator(body, client),), code, words, client)


ATTACH = Attach(MEMBER, EndOffset(0), (), "member-1", "app", b"")
ACKNOWLEDGE = Acknowledge(TXN, MEMBER, (Offset(1),), None, CLIENT)

COORDINATOR = {
    "short id": alone(OPEN, "MALFORMED", "a client id of 15 bytes; a client draws 16", SHORT),
    "long id": alone(OPEN, "MALFORMED", "a client id of 40 bytes", LONG),
    "unknown kind": Case(
        TXN_REQUESTS,
        (to_coordinator(Describe(0))[:-2] + bytes.fromhex("fa0600"),),
        "UNSUPPORTED",
        "upgrade the workers",
    ),
    "no outcome": Case(
        TXN_REQUESTS,
        (pb.Request(client_id=CLIENT, number=1, end=pb.End()).SerializeToString(),),
        "MALFORMED",
        "outcome 0 is neither commit nor abort",
    ),
    "nonce": alone(Hello(b"x"), "MALFORMED", "a nonce of 1 bytes instead of 16"),
    "no time": alone(Open(0, 1, ()), "MALFORMED", "time-out of 0 ms; allowed are 1..60000"),
    "long time": alone(Open(60_001, 1, ()), "MALFORMED", "(setting txn_timeout_ms_max)"),
    "at once": alone(Open(1, 1001, ()), "MALFORMED", "open of 1001 transactions at once"),
    "name": alone(Open(1, 1, (registered(NOWHERE),)), "MALFORMED", "nowhere/0 does not exist"),
    "compacted": alone(
        Open(1, 1, (registered(ACCOUNTS),)), "COMPACTED", "accounts: the topic compacts"
    ),
    "system topic": alone(
        Open(1, 1, (registered(TopicPartition(TXN_REQUESTS, 0)),)), "MALFORMED", "belongs to"
    ),
    "no topic's name": alone(
        Open(1, 1, (registered(TopicPartition("a b", 0)),)), "MALFORMED", "can have the name 'a b'"
    ),
    "partition": alone(
        Open(1, 1, (registered(TopicPartition("orders", 2**31)),)), "MALFORMED", "beyond 2^31 - 1"
    ),
    "topic id": alone(
        Open(1, 1, (registered(ORDERS, b"x"),)), "MALFORMED", "a topic id of 1 bytes"
    ),
    "start": alone(
        Open(1, 1, (Registered(ORDERS, EndOffset(HUGE), bytes(16)),)), "MALFORMED", "start offset"
    ),
    "group": alone(
        Open(1, 1, (), (SubscriptionId(ORDERS, ""),)), "MALFORMED", "a group's name of 0 characters"
    ),
    "sequence": alone(END._replace(sequence=HUGE), "MALFORMED", "beyond 2^63 - 1"),
    "written": alone(
        END._replace(written=(Written(ORDERS, Offset(0), EndOffset(HUGE), 1),)),
        "MALFORMED",
        "orders/0 is beyond 2^63 - 1",
    ),
    "never opened": alone(END, "ILLEGAL", "transaction 0 was never opened"),
    "never described": alone(Describe(3), "ILLEGAL", "transaction 3 was never opened"),
    "never released": alone(Release((4,)), "ILLEGAL", "transaction 4 was never opened"),
    "released": alone(Release((0,) * 1001), "ILLEGAL", "release of 1001 transactions at once"),
    "aborted": open_and(
        ABORT, END, code="ILLEGAL", words="transaction 0 was aborted by its client"
    ),
    "unregistered": open_and(
        END._replace(written=(Written(ORDERS, Offset(0), EndOffset(1), 1),)),
        code="ILLEGAL",
        words="orders/0",
    ),
    "another's": open_and(
        END, code="NOT_OWNER", words="transaction 0 belongs to another client", client=OTHER
    ),
    "prepared": open_and(PREPARE, END, code="PREPARED", words="its token ends it"),
    "another secret": open_and(
        PREPARE,
        COMMIT_PREPARED._replace(secret=b"t" * 32),
        code="NOT_OWNER",
        words="not the secret of transaction 0",
    ),
    "committed before": open_and(
        PREPARE, COMMIT_PREPARED, ABORT_PREPARED, code="COMMITTED", words="is decided: COMMITTED"
    ),
    "aborted before": open_and(
        PREPARE, ABORT_PREPARED, COMMIT_PREPARED, code="ABORTED", words="is decided: ABORTED"
    ),
    "transactions": alone(
        Open(1, 4, ()), "LIMIT", "the most is 3 (setting client_transactions_max)"
    ),
    "registrations": open_and(
        AddSubscriptions(0, tuple(SubscriptionId(ORDERS, str(it)) for it in range(3))),
        code="LIMIT",
        words="the most is 2 (setting transaction_partitions_max)",
    ),
    "partitions": alone(
        Open(1, 3, (), tuple(SubscriptionId(ORDERS, it) for it in "ab")),
        "LIMIT",
        "the most is 4 (setting client_partitions_max)",
    ),
    "abort": alone(Abort(0), "OPERATORS_ONLY", OPERATOR_REQUESTS),
    "list": alone(ListTransactions(), "OPERATORS_ONLY", OPERATOR_REQUESTS),
    "figures": alone(DescribeCoordinator(), "OPERATORS_ONLY", OPERATOR_REQUESTS),
    "barrier": alone(WriteBarrier(0, Probe(b"n", 1)), "OPERATORS_ONLY", OPERATOR_REQUESTS),
    "operator opens": Case(
        OPERATOR_REQUESTS, (to_coordinator(OPEN),), "UNSUPPORTED", "Open is taken from"
    ),
    "operator aborts": Case(
        OPERATOR_REQUESTS, (to_coordinator(Abort(HUGE)),), "MALFORMED", "beyond 2^63 - 1"
    ),
    "no such barrier": Case(
        OPERATOR_REQUESTS,
        (to_coordinator(WriteBarrier(7, Probe(b"n", 1))),),
        "MALFORMED",
        "marker partition 7; there are 2",
    ),
}


def store(
    *bodies: bytes, code: str, words: str, client: bytes = CLIENT, topic: str = ACK_REQUESTS
) -> Case:
    """Requests to the pending-ack store of ORDERS."""
    return Case(topic, bodies, code, words, client, system_partition(ORDERS, 2))


ACKS = {
    "short id": store(
        to_store(ATTACH, SHORT),
        code="MALFORMED",
        words="a client id of 15 bytes; a client draws 16",
        client=SHORT,
    ),
    "unknown kind": store(
        to_store(DescribeStore(), about=None)[:-2] + bytes.fromhex("fa0600"),
        code="UNSUPPORTED",
        words="upgrade the workers",
    ),
    "member": store(
        to_store(ATTACH._replace(member=b"m")), code="MALFORMED", words="a member has 16 bytes"
    ),
    "no member of a group": store(
        to_store(ATTACH._replace(group_member="")),
        code="MALFORMED",
        words="the claim names no member of the group",
    ),
    "not in the group": store(
        to_store(ATTACH), code="NOT_IN_GROUP", words="group billing has no member 'member-1'"
    ),
    "not attached": store(
        to_store(ACKNOWLEDGE), code="NOT_ATTACHED", words="no member is attached"
    ),
    "topic id": store(
        to_store(ATTACH._replace(topic_id=b"x")), code="MALFORMED", words="a topic's id of 1 bytes"
    ),
    "system topic": store(
        to_store(ATTACH, about=SubscriptionId(TopicPartition(TXN_REQUESTS, 0), "g")),
        code="MALFORMED",
        words="no application reads",
    ),
    "no client": store(
        to_store(ACKNOWLEDGE._replace(txn_client_id=b"")),
        code="MALFORMED",
        words="does not name the client of the transaction",
    ),
    "offset": store(
        to_store(CursorMoved(MEMBER, EndOffset(HUGE), ())), code="MALFORMED", words="2^63 - 1"
    ),
    "settle": store(
        to_store(Settle(TXN, True, 0)), code="OPERATORS_ONLY", words=OPERATOR_ACK_REQUESTS
    ),
    "operator attaches": store(
        to_store(ATTACH),
        code="UNSUPPORTED",
        words=f"Attach is taken from {ACK_REQUESTS} alone",
        topic=OPERATOR_ACK_REQUESTS,
    ),
}

SNAPSHOTS = {
    "short id": Case(
        SNAPSHOT_REQUESTS, (to_writer(ORDERS, SHORT),), "", "a client id of 15 bytes", SHORT
    ),
    "no topic": Case(
        SNAPSHOT_REQUESTS, (to_writer(TopicPartition("", 0)),), "", "no topic can have"
    ),
    "high partition": Case(
        SNAPSHOT_REQUESTS, (to_writer(TopicPartition("o", 2**31)),), "", "no topic can have"
    ),
    "nowhere": Case(
        SNAPSHOT_REQUESTS,
        (to_writer(NOWHERE),),
        "",
        "nowhere/0 does not exist",
        partition=system_partition(NOWHERE, 2),
    ),
    "another writer": Case(
        SNAPSHOT_REQUESTS,
        (to_writer(ORDERS),),
        "",
        f"snapshot writer {system_partition(ORDERS, 2)} of 2 serves orders/0",
        partition=1 - system_partition(ORDERS, 2),
    ),
}


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    """The broker of a worker whose clients hold next to nothing; it has the topic orders."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    broker.create_topic(TopicSpec(ACCOUNTS.topic, 1, {"cleanup.policy": "compact"}))
    limits = ClientLimits(
        txn_timeout_ms_max=60_000,
        client_transactions_max=3,
        transaction_partitions_max=2,
        client_partitions_max=4,
    )
    async with MemoryWorker(
        MemoryConnector(broker), client_limits=limits, snapshots=SnapshotLimits()
    ):
        yield broker


async def last_answer(broker: MemoryBroker, case: Case, decode: Callable[[bytes], object]):
    """The last answer to the requests of a case."""
    place = TopicPartition(case.topic, case.partition)
    answers: list[object] = []
    for request in case.requests:
        seen = len(broker.records(RESPONSES))
        broker.append(place, b"k", encode_batch([request]), None)
        await until(lambda seen=seen: len(broker.records(RESPONSES)) > seen)
    for record in broker.records(RESPONSES):
        if record.key == client_key(case.client):
            answers += map(decode, decode_value(record.value))
    return answers[-1].answer  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COORDINATOR)
async def test_a_coordinator_says_what_is_wrong(broker: MemoryBroker, name: str):
    """C10: code and reason travel in the answer, and the client's error shows the reason first."""
    case = COORDINATOR[name]
    answer = await last_answer(broker, case, txn_requests.decode_response)
    assert isinstance(answer, Refused)
    assert (answer.code, case.words in answer.reason) == (RefusalCode[case.code], True), answer


@pytest.mark.parametrize("name", ACKS)
async def test_a_pending_ack_store_says_what_is_wrong(broker: MemoryBroker, name: str):
    """C10: a request of each wrong form has its own code and reason; none is called TOO_MANY."""
    case = ACKS[name]
    answer = await last_answer(broker, case, ack_codec.decode_response)
    assert isinstance(answer, Refused)
    assert (answer.code, case.words in answer.reason) == (RefusalCode[case.code], True), answer


@pytest.mark.parametrize("name", SNAPSHOTS)
async def test_a_snapshot_writer_says_what_is_wrong(broker: MemoryBroker, name: str):
    """C10: what no topic can have is told apart from what does not exist."""
    case = SNAPSHOTS[name]
    answer = await last_answer(broker, case, snapshot_codec.decode_response)
    assert isinstance(answer, Refused)
    assert case.words in answer.reason


async def test_a_controller_of_groups_says_what_is_wrong():
    """C10: each wrong request of one record is answered; bytes of nobody are passed over."""
    reset = ResetGroup(AtOffset(Offset(1)), 0, 0)

    def asked(number: int, group: str = "g", data: TopicPartition = DATA) -> bytes:
        request = Request(CLIENT, number, 0, 0, GroupQuestion(data, group, reset))
        return group_codec.encode_request(request)

    short = Request(SHORT, 9, 0, 0, GroupQuestion(DATA, "g", reset))
    requests = [
        asked(1, group=""),
        asked(2, data=DATA._replace(partition=2**31)),
        asked(3, group="unknown"),
        group_codec.encode_request(short),
    ]
    async with replicated("ab", "g") as sites:
        a = sites["a"]
        driver = a.driver
        assert driver is not None
        await sites.until(lambda: driver.serving and DATA in driver.stats())
        with pytest.raises(DecodeError):
            driver.requests_received(encode_batch([b"\xff", *requests]))

        def reasons() -> dict[int, str]:
            said: dict[int, str] = {}
            for record in a.broker.records(RESPONSES):
                for data in decode_value(record.value):
                    response = group_codec.decode_response(data)
                    assert isinstance(response.answer, Refused)
                    said[response.number] = response.answer.reason
            return said

        await sites.until(lambda: len(reasons()) >= len(requests))
        said = reasons()
    assert said[1] == "a request about a group without its name"
    assert said[2].startswith("no topic can have the partition")
    assert said[3].startswith(f"group unknown of topic {DATA.topic} is not replicated")
    assert said[9].startswith("a client id of 15 bytes")


BODIES: dict[str, RequestBody] = {
    "open a transaction": OPEN,
    "register orders/0 with transaction 3:7": AddPartitions(7, (registered(ORDERS),)),
    "register orders/0 of billing with transaction 3:7": AddSubscriptions(7, (HERE,)),
    "commit transaction 3:7": END._replace(sequence=7),
    "abort transaction 3:7": ABORT._replace(sequence=7),
    "release transactions that were opened ahead": Release((7,)),
    "describe transaction 3:7": Describe(7),
    "list its transactions": ListTransactions(),
    "tell its figures": DescribeCoordinator(),
    "write a barrier": WriteBarrier(0, Probe(b"n", 1)),
    "name a direct line": Hello(b"n"),
}


CODES = codes_of(pb.RefusalCode.items()).values()
"""Those that a coordinator knows."""


@pytest.mark.parametrize("asked", BODIES)
def test_the_first_line_of_an_error_names_request_and_reason(asked: str):
    """A log that keeps the first line says what was refused, where and why, whatever the code."""
    for code in CODES:
        error = refused(3, BODIES[asked], Refused("the reason", code))
        assert error.primary == f"coordinator 3 refused to {asked}: the reason"


def test_every_code_of_a_coordinator_is_tried():
    """The table above leaves no code out."""
    assert {case.code for case in COORDINATOR.values()} == {code.name for code in CODES}
