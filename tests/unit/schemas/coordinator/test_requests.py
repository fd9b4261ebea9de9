"""Bytes of txn-requests and txn-responses (C): changing one breaks every mixed-version cluster."""

from typing import cast

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given

from stilltide.schemas.coordinator.markers import Probe
from stilltide.schemas.coordinator.requests import (
    arrived_request_of,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_of,
)
from stilltide.schemas.coordinator.transactions import (
    AbortCause,
    AddPartitions,
    AddSubscriptions,
    Answer,
    CompactedTopic,
    Decide,
    Describe,
    DescribeCoordinator,
    Description,
    End,
    EndPrepared,
    Listed,
    ListTransactions,
    LiveEntry,
    LogLiveness,
    Open,
    Opened,
    OperatorDecision,
    Preparation,
    Prepare,
    Registered,
    Release,
    ReportedEnd,
    RequestBody,
    Unknown,
    WriteBarrier,
)
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.service.envelopes import (
    Done,
    RefusalCode,
    Refused,
    Request,
    Response,
    Unreadable,
)
from stilltide.schemas.v1 import requests_pb2 as pb
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.schemas.wire import (
    FLUSHES,
    FLUSHES_HEX,
    READ,
    REGISTERED,
    REQUESTS,
    RESPONSES,
    ROUND_TRIPS,
    STATS,
    WRITTEN,
    request,
)

# client_id "c", number 2, acked_through 1, reply_partition 4
HEAD = "0a0163 1002 1801 2004 "
PARTITION = "0a0174 1003 18ac02 2210000102030405060708090a0b0c0d0e0f"
READS = "0a0174 1003 1a0167"
SECRET = bytes(range(32))
SECRET_HEX = SECRET.hex()
PREPARATION = Preparation(9, SECRET, "db")
ORDERS = Registered(TopicPartition("orders", 0), EndOffset(0), b"")

BODIES: dict[str, tuple[RequestBody, str]] = {
    "open": (Open(60_000, 1, (REGISTERED,)), "2a22 08e0d403 1001 1a1a" + PARTITION),
    "open for topics that compact": (
        Open(1, 1, (), allow_compacted=True),
        "2a06 0801 1001 3001",
    ),
    "add partitions of topics that compact": (
        AddPartitions(7, (), allow_compacted=True),
        "3204 0807 1801",
    ),
    "open a pool": (Open(1, 20, ()), "2a04 0801 1014"),
    "add partitions": (
        AddPartitions(7, (REGISTERED, ORDERS)),
        "3228 0807 121a" + PARTITION + "1208 0a066f7264657273",
    ),
    "open with subscriptions": (Open(1, 1, (), (READ,)), "2a0e 0801 1001 2208" + READS),
    "add subscriptions": (AddSubscriptions(7, (READ,)), "520c 0807 1208" + READS),
    "commit": (
        End(7, True, (WRITTEN,), True),
        "3a15 0807 1001 1a0d 0a0174 1003 18ac02 20b602 2809 2001",
    ),
    "abort": (End(7, False, (), False), "3a04 0807 1002"),
    "abort without acknowledgements": (End(7, False, (), False, ()), "3a06 0807 1002 2a00"),
    "commit of acknowledgements": (
        End(7, True, (), False, (READ,)),
        "3a10 0807 1001 2a0a 0a08" + READS,
    ),
    "release": (Release((7, 300)), "5a05 0a03 07ac02"),
    "describe": (Describe(7), "4202 0807"),
    "list": (ListTransactions(), "4a00"),
    "describe the coordinator": (DescribeCoordinator(), "6200"),
    "write a barrier": (WriteBarrier(3, Probe(b"n", 300)), "6a08 0803 12016e 18ac02"),
    "prepare": (
        Prepare(7, (WRITTEN,), (READ,), SECRET, "db"),
        "820143 0807 120d 0a0174 1003 18ac02 20b602 2809 1a0a 0a08"
        + READS
        + "2220"
        + SECRET_HEX
        + "2a02 6462",
    ),
    "prepare all that is registered": (
        Prepare(7, (), None, SECRET),
        "820124 0807 2220" + SECRET_HEX,
    ),
    "commit by token": (
        EndPrepared(7, True, SECRET, True),
        "8a0128 0807 1001 1a20" + SECRET_HEX + "2001",
    ),
    "abort by an operator": (Decide(7, False, "why"), "920109 0807 1002 1a03 776879"),
    "abort by an operator with a name": (
        Decide(7, False, "why", decided_by="me"),
        "92010d 0807 1002 1a03 776879 3202 6d65",
    ),
    "what is logged of a token": (
        Decide(7, True, "", SECRET, True),
        "920128 0807 1001 2220" + SECRET_HEX + "2801",
    ),
}
STATS_HEAD = (
    "0801 1002 1803 2004 2805 3006 3801 4001 4809 500a 580b 6001 680d 700e 780f "
    "800110 880111 900112 980113 "
)
LIVE = (LiveEntry(Offset(5), 1 << 9 | 1), LiveEntry(Offset(7), 1))

CAUSES = tuple((it, AbortCause.OPERATOR if it == 4 else AbortCause.TIMED_OUT) for it in (3, 4, 5))

ANSWERS: dict[str, tuple[Answer, str]] = {
    "opened": (Opened(5, 2), "1a04 0805 1002"),
    "opened sequence 0": (Opened(0, 1), "1a02 1001"),
    "done": (Done(), "2200"),
    "refused": (Refused("no"), "2a04 0a026e6f"),
    "unknown": (Unknown(), "3200"),
    "described": (
        Description(7, "OPEN", 1_700_000_000_000, 60_000, (REGISTERED,)),
        "3a2f 0807 12044f50454e 1880d095ffbc31 20e0d403 2a1a" + PARTITION,
    ),
    "described with subscriptions": (
        Description(7, "OPEN", 1, 2, (), (READ,)),
        "3a16 0807 12044f50454e 1801 2002 3208" + READS,
    ),
    "listed": (
        Listed((Description(7, "ABORTING", 1, 2, ()),), 7),
        "4214 0a10 0807 120841424f5254494e47 1801 2002 1007",
    ),
    "nothing to list": (Listed((), 0), "4200"),
    "listed with its place, causes and counts": (
        Listed((), 7, 0, EndOffset(9), CAUSES, 3, 1, 2),
        "4216 1007 2009 2a0a 0a03030405 1203020302 3003 3801 4002",
    ),
    "described with a cause": (
        Description(7, "ENDED", 0, 0, (), committed=False, cause=AbortCause.TIMED_OUT),
        "3a0d 0807 1205 454e444544 4802 5002",
    ),
    "refused, since it is prepared": (Refused("no", RefusalCode.PREPARED), "2a06 0a026e6f 1007"),
    "refused, since it has committed": (Refused("no", RefusalCode.COMMITTED), "2a06 0a026e6f 1008"),
    "refused, since it has aborted": (Refused("no", RefusalCode.ABORTED), "2a06 0a026e6f 1009"),
    "described with its preparation": (
        Description(7, "PREPARED", 1, 2, (), preparation=PREPARATION),
        "3a3a 0807 1208 5052455041524544 1801 2002 5a28 0809 1220" + SECRET_HEX + "1a02 6462",
    ),
    "described as aborted by its token": (
        Description(7, "ENDED", 0, 0, (), committed=False, cause=AbortCause.TOKEN),
        "3a0d 0807 1205 454e444544 4802 5004",
    ),
    "listed with decisions": (
        Listed((), 7, prepared_count=2, decisions=(OperatorDecision(5, True, 9, "why"),)),
        "4211 1007 4802 520b 0805 1001 1809 2203 776879",
    ),
    "listed with who has decided": (
        Listed((), 7, decisions=(OperatorDecision(5, True, 9, "why", "me"),)),
        "4213 1007 520f 0805 1001 1809 2203 776879 2a02 6d65",
    ),
    "figures with prepared transactions": (
        STATS._replace(prepared_count=2, oldest_prepared_ms=9),
        "4a30 " + STATS_HEAD + "d80102 e00109",
    ),
    "figures with transactions that have ended": (
        STATS._replace(commit_count=2, abort_count=0),
        "4a30 " + STATS_HEAD + "e80102 f00100",
    ),
    "figures": (STATS, "4a2a " + STATS_HEAD),
    "figures without a live record": (
        STATS._replace(liveness=LogLiveness(None, 0, 6, ())),
        "4a2f " + STATS_HEAD + "a20102 1806",
    ),
    "figures with a link that has ended": (
        STATS._replace(ends=(ReportedEnd("links", "b", 9, "x", "y"),)),
        "4a3f " + STATS_HEAD + "aa0112 0a056c696e6b73 120162 1809 220178 2a0179",
    ),
    "figures with a topic that compacts": (
        STATS._replace(compacted=(CompactedTopic("t", 9),)),
        "4a32 " + STATS_HEAD + "d20105 0a0174 1009",
    ),
    "figures with their place": (
        STATS._replace(as_of=EndOffset(9), changed_at=Offset(7)),
        "4a30 " + STATS_HEAD + "c00109 c80107",
    ),
    "figures with a flush": (
        STATS._replace(log=STATS.log._replace(flushes=(FLUSHES,))),
        "4a3d " + STATS_HEAD + "b20110 " + FLUSHES_HEX,
    ),
    "figures with live records": (
        STATS._replace(liveness=LogLiveness(Offset(5), 3, 8, LIVE)),
        "4a42 " + STATS_HEAD + "a20115 0805 1003 1808 2206 0805 12020102 2205 0807 120101",
    ),
}


@pytest.mark.parametrize(("body", "hex_bytes"), BODIES.values(), ids=BODIES)
def test_request_bytes(body: RequestBody, hex_bytes: str):
    """Every kind of request has exactly these bytes, and is read back from them."""
    data = bytes.fromhex(HEAD + hex_bytes)
    assert encode_request(request(body)) == data
    assert decode_request(data) == request(body)


@pytest.mark.parametrize(("answer", "hex_bytes"), ANSWERS.values(), ids=ANSWERS)
def test_response_bytes(answer: Answer, hex_bytes: str):
    """Every kind of answer has exactly these bytes, and is read back from them."""
    response = Response(2, 1, answer)
    data = bytes.fromhex("0802 1001 " + hex_bytes)
    assert encode_response(response) == data
    assert decode_response(data) == response


@ROUND_TRIPS
@given(REQUESTS)
def test_every_request_is_read_back(one: Request):
    """Encoding loses nothing of a request."""
    assert decode_request(encode_request(one)) == one


@ROUND_TRIPS
@given(RESPONSES)
def test_every_response_is_read_back(one: Response):
    """Encoding loses nothing of an answer."""
    assert decode_response(encode_response(one)) == one


def test_open_without_count_opens_one():
    """C9: a count of 0, what a client without pools leaves out, means 1."""
    assert decode_request(bytes.fromhex(HEAD + "2a02 0801")).body == Open(1, 1, ())


@pytest.mark.parametrize(
    ("hex_bytes", "primary"),
    [
        ("ff", "not a request to a coordinator"),
        ("0a0563", "not a request to a coordinator"),
        ("0a0163 1002 2a08 1a06 0a02fffe 1001", "not a request to a coordinator"),
        ("1002 4a00", "a request without client id or number"),
        ("0a0163 4a00", "a request without client id or number"),
        ("0a0163 1002", "a request that this program does not know"),
        ("0a0163 1002 fa0100", "a request that this program does not know"),
        ("0a0163 1002 7a00", "a nonce of 0 bytes instead of 16"),
        ("0a0163 1002 3a02 0807", "outcome 0 is neither commit nor abort"),
        ("0a0163 1002 3a04 0807 1003", "outcome 3 is neither commit nor abort"),
        ("0a0163 1002 6a05 0803 12016e", "a request for a barrier without probe"),
        ("0a0163 1002 820102 0807", "the hash of a secret has 32 bytes, not 0"),
        ("0a0163 1002 8a0107 0807 1001 1a01 00", "a secret has 32 bytes, not 1"),
        ("0a0163 1002 920102 0807", "outcome 0 is neither commit nor abort"),
    ],
    ids=[
        "garbage",
        "truncated",
        "topic not UTF-8",
        "no client id",
        "no number",
        "no body",
        "body of a later version",
        "no nonce",
        "no outcome",
        "unknown outcome",
        "no probe",
        "no hash of a secret",
        "no secret",
        "no decision",
    ],
)
def test_what_is_no_request_is_an_error(hex_bytes: str, primary: str):
    """Bytes that are not a complete, known request are refused with the reason."""
    with pytest.raises(DecodeError) as caught:
        decode_request(bytes.fromhex(hex_bytes))
    assert caught.value.primary == primary


@pytest.mark.parametrize(
    ("hex_bytes", "primary"),
    [
        ("ff", "not an answer of a coordinator"),
        ("0802 1001 2a04 0a026e", "not an answer of a coordinator"),
        ("1001 2200", "an answer without a request's number"),
    ],
    ids=["garbage", "truncated", "no number"],
)
def test_what_is_no_answer_is_an_error(hex_bytes: str, primary: str):
    """Bytes that are not a complete, known answer are refused with the reason."""
    with pytest.raises(DecodeError) as caught:
        decode_response(bytes.fromhex(hex_bytes))
    assert caught.value.primary == primary


@pytest.mark.parametrize("hex_bytes", ["0802 1001", "0802 1001 7a00"])
def test_c10_an_answer_of_a_later_version_tells_nothing(hex_bytes: str):
    """C10: whether its request took effect is unknown; the client goes on."""
    assert decode_response(bytes.fromhex(hex_bytes)) == Response(2, 1, Unknown())


def test_c10_an_unknown_reason_is_a_refusal():
    """C10: an older client understands that the request was refused, and reads why."""
    refused = decode_response(bytes.fromhex("0802 1001 2a06 0a026e6f 1063")).answer
    assert refused == Refused("no", RefusalCode.ILLEGAL)


def older_message(data: bytes) -> pb.Request:
    """The bytes as a version parses them that knows no prepared transactions."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    message = next(it for it in file.message_type if it.name == "Request")
    kept = [it for it in message.field if it.name not in {"prepare", "end_prepared", "decide"}]
    del message.field[:]
    message.field.extend(kept)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    known = message_factory.GetMessageClass(pool.FindMessageTypeByName("stilltide.v1.Request"))
    return cast("pb.Request", known.FromString(data))


@pytest.mark.parametrize(
    "body", [Prepare(7, (), None, SECRET), EndPrepared(7, True, SECRET, True), Decide(7, True, "x")]
)
def test_l8_an_earlier_version_refuses(body: RequestBody):
    """L8, C10: it answers the client that asks, and does not read such a request from a log."""
    older = older_message(encode_request(request(body)._replace(client_id=b"c" * 16)))
    assert older.WhichOneof("body") is None
    asked = arrived_request_of(older).body
    assert isinstance(asked, Unreadable)
    assert asked.refusal.code is RefusalCode.UNSUPPORTED
    with pytest.raises(DecodeError, match="a request that this program does not know"):
        request_of(older)


def test_l2_no_text_of_a_request_shows_its_secret():
    """L2: logs and errors may print a request, never what its secret is."""
    asked = request(EndPrepared(7, True, b"s" * 32, False))
    assert "sss" not in repr(asked)
    assert "sss" not in f"{asked}"
