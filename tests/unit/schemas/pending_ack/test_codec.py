"""Bytes of ack-requests, of the answers, and of pending-ack-log (G): the log is kept for long."""

import pytest
from hypothesis import given

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.framing import encode_request_record
from stilltide.schemas.log_frames import Base, Fence, LogFrame, Noop
from stilltide.schemas.pending_ack import codec
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckBody,
    AckLogBody,
    Acknowledge,
    Acks,
    AckState,
    Attach,
    BaseCoordinator,
    BaseSubscription,
    CursorMoved,
    DescribeAcks,
    DescribeStore,
    PendingAckRecord,
    PendingAcks,
    Settle,
)
from stilltide.schemas.pending_ack.codec import decode_state, encode_state
from stilltide.schemas.service.envelopes import (
    Done,
    RefusalCode,
    Refused,
    Request,
    Response,
    Unreadable,
)
from stilltide.schemas.v1 import pending_ack_pb2
from stilltide.schemas.values import EndOffset, Offset, Range, TxnId
from tests.support.schemas.wire import FLUSHES, FLUSHES_HEX, READ, ROUND_TRIPS, TOPIC_ID, U64
from tests.support.schemas.wire_acks import (
    ACK_REQUESTS,
    ACK_RESPONSES,
    ACK_STATES,
    MEMBER,
    OWN_ACK_BODIES,
    STORE_STATS,
    SUBSCRIPTION_STATS,
    TXN,
    ack_request,
)

AT_MS = 1_700_000_000_000
AT = "7880d095ffbc31"

# client_id "c", number 2, reply_partition 4, and subscription t/3 of g
STORE_HEAD = "0a0163 1002 1804 "
HEAD = STORE_HEAD + "2208 0a0174 1003 1a0167 "
NEW_ID = "0a10" + "63" * 16 + " "
"""A client id of this version, where HEAD has one that no version makes."""

NEW_HEAD = HEAD.replace("0a0163 ", NEW_ID)
MEMBER_HEX = "0a10 000102030405060708090a0b0c0d0e0f"
TXN_HEX = "0a04 0802 1007"
TEN = (Range(Offset(10), EndOffset(20)), Range(Offset(0x12C), EndOffset(0x12D)))
TEN_HEX = "1a04 080a 1014 1a06 08ac02 10ad02"

ACKS_HEX = (
    f"2a38 0805 1204 080a1014 1206 08ac0210ad02 1a0e {TXN_HEX} 1204 080a1014 1800 "
    f"1a04 0a02 1001 22{MEMBER_HEX[2:]}"
)

READ_HEX = "0a08 0a0174 1003 1a0167 1001 1803 2004 2805 3006 3807"
STATS_HEX = "0801 1002 1803 2004 2805 3001 3807 4008 4809 5001 580b 600c 680d 700e 780f 800110"

BODIES: dict[str, tuple[AckBody, str]] = {
    "attach": (Attach(MEMBER, EndOffset(5), TEN), f"2a22 {MEMBER_HEX} 1005 {TEN_HEX}"),
    "attach at the start": (Attach(MEMBER, EndOffset(0), ()), f"2a12 {MEMBER_HEX}"),
    "acknowledge": (
        Acknowledge(TXN, MEMBER, (Offset(0), Offset(300))),
        f"321d {TXN_HEX} 12{MEMBER_HEX[2:]} 1a03 00ac02",
    ),
    "acknowledge cumulatively": (
        Acknowledge(TXN, MEMBER, (), Offset(0)),
        f"321a {TXN_HEX} 12{MEMBER_HEX[2:]} 2000",
    ),
    "acknowledge both ways": (
        Acknowledge(TxnId(0, 0), MEMBER, (Offset(9),), Offset(300)),
        f"321a 0a00 12{MEMBER_HEX[2:]} 1a01 09 20ac02",
    ),
    "cursor moved": (CursorMoved(MEMBER, EndOffset(5), TEN), f"3a22 {MEMBER_HEX} 1005 {TEN_HEX}"),
    "settle: commit": (Settle(TXN, True, 6), f"420a {TXN_HEX} 1001 1806"),
    "settle: abort": (Settle(TXN, False, 0), f"4208 {TXN_HEX} 1002"),
    "describe": (DescribeAcks(), "4a00"),
}
CODES = [
    RefusalCode.ALREADY_ACKNOWLEDGED,
    RefusalCode.PENDING_IN_ANOTHER_TRANSACTION,
    RefusalCode.TRANSACTION_ENDED,
    RefusalCode.NOT_ATTACHED,
    RefusalCode.TOO_MANY,
    RefusalCode.NOT_OWNER,
    RefusalCode.NOT_IN_GROUP,
    RefusalCode.MALFORMED,
    RefusalCode.UNSUPPORTED,
    RefusalCode.OPERATORS_ONLY,
]
ANSWERS: dict[str, tuple[AckAnswer, str]] = {
    "done": (Done(), "1a00"),
    "acks": (
        Acks(
            EndOffset(5),
            TEN,
            (PendingAcks(TXN, TEN[:1], Offset(0)), PendingAcks(TxnId(0, 1), (), None)),
            MEMBER,
        ),
        ACKS_HEX,
    ),
    "no acks": (Acks(EndOffset(0), (), (), b""), "2a00"),
    "figures": (
        STORE_STATS,
        f"3249 {STATS_HEX} 880111 900112 9a011c {READ_HEX} 4008 4809 5001 a00114",
    ),
    "figures with a flush": (
        STORE_STATS._replace(log=STORE_STATS.log._replace(flushes=(FLUSHES,))),
        f"325c {STATS_HEX} 880111 900112 9a011c {READ_HEX} 4008 4809 5001 a00114 aa0110"
        + FLUSHES_HEX,
    ),
    "figures without base and cumulative slot": (
        STORE_STATS._replace(
            base_as_of=None,
            subscriptions=(SUBSCRIPTION_STATS._replace(pending_cumulative_offset=None),),
        ),
        f"3244 {STATS_HEX} 900112 9a011a {READ_HEX} 4809 5001 a00114",
    ),
} | {
    code.value: (Refused("no", code), f"2206 08{number:02x} 12026e6f")
    for number, code in enumerate(CODES, 1)
}
OWN: dict[str, tuple[LogFrame, str]] = {
    "fence": (Fence(TOPIC_ID), "0a12 0a10000102030405060708090a0b0c0d0e0f"),
    "no-op": (Noop(), "1200"),
    "base": (Base(EndOffset(300), 1, 2, b"ab"), "220b 08ac02 1001 1802 22026162"),
    "empty base": (Base(EndOffset(0), 0, 1, b""), "2202 1801"),
}


def logged(data: bytes) -> AckLogBody:
    """The request in a log record with these bytes, whatever version logged it."""
    return codec.decode(encode_request_record(data, AT_MS)).body


@pytest.mark.parametrize(("body", "hex_bytes"), BODIES.values(), ids=BODIES)
def test_request_bytes(body: AckBody, hex_bytes: str):
    """Every kind of request has exactly these bytes, and is read back from them."""
    data = bytes.fromhex(HEAD + hex_bytes)
    assert codec.encode_request(ack_request(body)) == data
    assert logged(data) == ack_request(body)


@pytest.mark.parametrize(
    ("body", "hex_bytes"),
    [
        (DescribeStore(), "5200"),
        (DescribeStore("t", "g"), "5206 0a0174 120167"),
    ],
)
def test_bytes_of_a_question_to_a_store(body: DescribeStore, hex_bytes: str):
    """It is about no subscription; whatever an asker says of one is passed over."""
    data = bytes.fromhex(STORE_HEAD + hex_bytes)
    assert codec.encode_request(ack_request(body)) == data
    assert logged(data) == ack_request(body)
    assert logged(bytes.fromhex(HEAD + hex_bytes)) == ack_request(body)


@pytest.mark.parametrize(("answer", "hex_bytes"), ANSWERS.values(), ids=ANSWERS)
def test_response_bytes(answer: AckAnswer, hex_bytes: str):
    """Every kind of answer has exactly these bytes, and is read back from them."""
    response = Response(2, 1, answer)
    data = bytes.fromhex("0802 1001 " + hex_bytes)
    assert codec.encode_response(response) == data
    assert codec.decode_response(data) == response


@pytest.mark.parametrize(("body", "hex_bytes"), OWN.values(), ids=OWN)
def test_own_record_bytes(body: LogFrame, hex_bytes: str):
    """Every record an owner makes itself has exactly these bytes, and is read back from them."""
    data = bytes.fromhex(hex_bytes + AT)
    assert codec.encode_own(body, AT_MS) == data
    assert codec.decode(data) == PendingAckRecord(body, AT_MS)


def test_request_record_bytes():
    """C0: a request's record is the request's own bytes behind tag 3, then the owner's clock."""
    asked = ack_request(DescribeAcks())
    data = bytes.fromhex("1a13" + HEAD + "4a00" + AT)
    assert encode_request_record(codec.encode_request(asked), AT_MS) == data
    assert codec.decode(data) == PendingAckRecord(asked, AT_MS)


@ROUND_TRIPS
@given(ACK_REQUESTS)
def test_every_request_is_read_back(one: Request):
    """Encoding loses nothing of a request."""
    assert codec.decode_request(codec.encode_request(one)) == one


@ROUND_TRIPS
@given(ACK_RESPONSES)
def test_every_response_is_read_back(one: Response):
    """Encoding loses nothing of an answer."""
    assert codec.decode_response(codec.encode_response(one)) == one


@ROUND_TRIPS
@given(OWN_ACK_BODIES, U64)
def test_every_own_record_is_read_back(body: LogFrame, at_ms: int):
    """Encoding loses nothing of an owner's record."""
    assert codec.decode(codec.encode_own(body, at_ms)) == PendingAckRecord(body, at_ms)


@ROUND_TRIPS
@given(ACK_REQUESTS, U64)
def test_a_spliced_request_is_what_protobuf_would_build(one: Request, at_ms: int):
    """A: splicing serialised bytes gives the bytes of the message built the long way."""
    request_bytes = codec.encode_request(one)
    built = pending_ack_pb2.PendingAckLogRecord(
        request=pending_ack_pb2.AckRequest.FromString(request_bytes), at_ms=at_ms
    )
    assert encode_request_record(request_bytes, at_ms) == built.SerializeToString()


STATE = AckState(
    AT_MS,
    (BaseSubscription(READ, Acks(EndOffset(5), (), (), MEMBER), EndOffset(4), ((MEMBER, 7),), 9),),
    (BaseCoordinator(2, 6, ((7, 9), (11, 12))),),
)
STATE_HEX = (
    "0880d095ffbc31 123a 0a08 0a0174 1003 1a0167 1214 0805 2210 000102030405060708090a0b0c0d0e0f"
    "1804 2214 0a10 000102030405060708090a0b0c0d0e0f 1007 2809"
    "1a10 0802 1006 1a04 0807 1009 1a04 080b 100c"
)


def test_state_bytes():
    """C8: a state has exactly these bytes, and is read back from them."""
    data = bytes.fromhex(STATE_HEX)
    assert b"".join(encode_state(STATE)) == data
    assert decode_state(data) == STATE


@ROUND_TRIPS
@given(ACK_STATES)
def test_every_state_is_read_back(state: AckState):
    """C8: encoding loses nothing of a state, joined from its parts."""
    assert decode_state(b"".join(encode_state(state))) == state


def test_what_is_no_state_is_an_error():
    """C8: a base that is not a state is refused with the reason."""
    with pytest.raises(DecodeError) as caught:
        decode_state(b"\xff")
    assert caught.value.primary == "not a pending-ack log's state"


@pytest.mark.parametrize(
    ("hex_bytes", "primary"),
    [
        ("ff", "not a request about acknowledgements"),
        ("1002 4a00", "a request without client id or number"),
        ("0a0163 4a00", "a request without client id or number"),
    ],
)
def test_what_is_no_request_is_an_error(hex_bytes: str, primary: str):
    """C10: bytes that do not say whom to answer are refused with the reason."""
    with pytest.raises(DecodeError) as caught:
        codec.decode_request(bytes.fromhex(hex_bytes))
    assert caught.value.primary.startswith(primary)


@pytest.mark.parametrize(
    ("hex_bytes", "code", "reason"),
    [
        (NEW_ID + "1002 4a00", "MALFORMED", "a request about acknowledgements without sub"),
        (NEW_HEAD, "UNSUPPORTED", "this store does not know the request"),
        (NEW_HEAD + "7a00", "UNSUPPORTED", "this store does not know the request"),
        (NEW_HEAD + "2a03 0a0100", "MALFORMED", "a member has 16 bytes, not 1"),
        (NEW_HEAD + "3200", "MALFORMED", "a member has 16 bytes, not 0"),
        (NEW_HEAD + f"2a16 {MEMBER_HEX} 1a02 0805", "MALFORMED", "offsets [5, 0) behind 0: not"),
        (
            NEW_HEAD + f"2a1e {MEMBER_HEX} 1a04 0805 1007 1a04 0806 1009",
            "MALFORMED",
            "offsets [6, 9) behind 7: not ascending",
        ),
        (NEW_HEAD + "4200", "MALFORMED", "outcome 0 is neither commit nor abort"),
        (HEAD + "4a00", "MALFORMED", "a client id of 1 bytes; a client draws 16"),
    ],
)
def test_c10_what_cannot_be_read_is_refused(hex_bytes: str, code: str, reason: str):
    """C10: a client that is known gets an answer that says why."""
    body = codec.decode_request(bytes.fromhex(hex_bytes)).body.ask
    assert isinstance(body, Unreadable)
    assert body.refusal.code is RefusalCode[code]
    assert body.refusal.reason.startswith(reason)


@pytest.mark.parametrize(
    ("hex_bytes", "code"),
    [
        ("0802 1001", RefusalCode.UNSUPPORTED),
        ("0802 1001 7a00", RefusalCode.UNSUPPORTED),
        ("0802 2204 08631200", RefusalCode.ILLEGAL),
    ],
)
def test_c10_an_answer_of_a_later_version_refuses_its_request(hex_bytes: str, code: RefusalCode):
    """C10: an unknown kind of answer, or reason, ends one request and not the client."""
    answer = codec.decode_response(bytes.fromhex(hex_bytes)).answer
    assert isinstance(answer, Refused)
    assert answer.code is code


@pytest.mark.parametrize(
    ("hex_bytes", "primary"),
    [
        ("ff", "not an answer about acknowledgements"),
        ("1001 1a00", "an answer without a request's number"),
    ],
)
def test_what_is_no_answer_is_an_error(hex_bytes: str, primary: str):
    """Bytes that are not a complete, known answer are refused with the reason."""
    with pytest.raises(DecodeError) as caught:
        codec.decode_response(bytes.fromhex(hex_bytes))
    assert caught.value.primary.startswith(primary)


@pytest.mark.parametrize(
    ("hex_bytes", "primary"),
    [
        ("ff", "not a record of pending-ack-log"),
        (AT, "a pending-ack-log record that this program does not know"),
        ("7200" + AT, "a pending-ack-log record that this program does not know"),
        ("1a00" + AT, "a request without client id or number"),
        ("2204 1001 1801" + AT, "piece 1 of a base of 1 pieces"),
    ],
)
def test_what_is_no_record_is_an_error(hex_bytes: str, primary: str):
    """Bytes that are not a complete, known record are refused with the reason."""
    with pytest.raises(DecodeError) as caught:
        codec.decode(bytes.fromhex(hex_bytes))
    assert caught.value.primary == primary
