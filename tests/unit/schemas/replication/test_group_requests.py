"""Bytes of group-requests and of their answers (I14)."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.replication import requests as codec
from stilltide.schemas.replication.requests import (
    TIME_MS_MAX,
    AtOffset,
    AtTime,
    Edge,
    GroupAnswer,
    GroupAsk,
    GroupQuestion,
    HasMembers,
    PositionsAnswer,
    ResetAnswer,
    ResetGroup,
    SyncAnswer,
    SyncGroup,
    TakePositions,
)
from stilltide.schemas.service.envelopes import RefusalCode, Refused, Request, Response, Unreadable
from stilltide.schemas.topics import is_topic_name
from stilltide.schemas.values import PARTITION_MAX, Offset, TopicPartition
from tests.support.schemas.wire import DATA_PARTITIONS, ROUND_TRIPS, TEXT, U32, U64

ORDERS = TopicPartition("orders", 2)
CLIENT_ID = b"c" * 16
CLIENT_HEX = "0a10" + CLIENT_ID.hex()
HEAD_HEX = f"{CLIENT_HEX} 1007 1803 22066f7264657273 2802"
ASKS: dict[str, tuple[str, GroupAsk, str]] = {
    "to an offset": ("g", ResetGroup(AtOffset(Offset(300)), 4, 9), "320167 3a07 08ac02 2804 3009"),
    "to offset 0, shown": ("g", ResetGroup(AtOffset(Offset(0)), None, 0), "320167 3a02 0800"),
    "to a time, with stop": (
        "g",
        ResetGroup(AtTime(300), 0, 9, stop=True),
        "320167 3a09 10ac02 2800 3009 3801",
    ),
    "to the log start": ("g", ResetGroup(Edge.EARLIEST, 0, 9), "320167 3a06 1801 2800 3009"),
    "to the end": ("g", ResetGroup(Edge.LATEST, 0, 9), "320167 3a06 2001 2800 3009"),
    "sync": ("g", SyncGroup(), "320167 4200"),
    "snapshot": ("", TakePositions(), "4a00"),
}
MEMBERS_HEX = b"the group has members on this cluster".hex()
ANSWERS: dict[str, tuple[GroupAnswer, str]] = {
    "reset": (ResetAnswer(Offset(300), Offset(4), 5, moved=True), "1a09 08ac02 1004 1805 2001"),
    "reset of a group without offset": (ResetAnswer(None, Offset(0), 0), "1a00"),
    "sync": (SyncAnswer(Offset(300), 4, "why"), "220a 08ac02 1004 1a03776879"),
    "sync of a group without offset": (SyncAnswer(None, 0, ""), "2200"),
    "snapshot": (PositionsAnswer(300, 4, 5), "2a07 08ac02 1004 1805"),
    "members": (
        HasMembers(("m-1", "m-2")),
        f"323e 0a25 {MEMBERS_HEX} 120b4841535f4d454d42455253 1a036d2d31 1a036d2d32",
    ),
    "refused": (Refused("why", RefusalCode.MALFORMED), "3210 0a03776879 12094d414c464f524d4544"),
}


@pytest.mark.parametrize("name", ASKS)
def test_request_bytes(name: str):
    """Every kind of request has exactly these bytes, and is read back from them."""
    group, ask, body = ASKS[name]
    request = Request(CLIENT_ID, 7, 0, 3, GroupQuestion(ORDERS, group, ask))
    data = bytes.fromhex(f"{HEAD_HEX} {body}")
    assert codec.encode_request(request) == data
    assert codec.decode_request(data) == request


@pytest.mark.parametrize("name", ANSWERS)
def test_answer_bytes(name: str):
    """Every kind of answer has exactly these bytes, and is read back from them."""
    answer, body = ANSWERS[name]
    response = Response(7, 1, answer)
    data = bytes.fromhex(f"0807 1001 {body}")
    assert codec.encode_response(response) == data
    assert codec.decode_response(data) == response


OFFSETS = U64.map(Offset)
TARGETS = st.one_of(
    st.builds(AtOffset, OFFSETS),
    st.builds(AtTime, st.integers(0, TIME_MS_MAX)),
    st.sampled_from(Edge),
)
RESETS = st.builds(ResetGroup, TARGETS, st.none() | U64, U64, st.booleans())
NAMES = TEXT.filter(bool)
PARTITIONS = DATA_PARTITIONS.filter(
    lambda it: is_topic_name(it.topic) and it.partition <= PARTITION_MAX
)
QUESTIONS = st.one_of(
    st.builds(GroupQuestion, PARTITIONS, NAMES, RESETS | st.just(SyncGroup())),
    st.builds(GroupQuestion, PARTITIONS, TEXT, st.just(TakePositions())),
)


@ROUND_TRIPS
@given(st.binary(min_size=16, max_size=16), U64.filter(bool), U32, QUESTIONS)
def test_every_request_is_read_back(
    client_id: bytes, number: int, reply_partition: int, question: GroupQuestion
):
    """Encoding loses nothing of a request."""
    one = Request(client_id, number, 0, reply_partition, question)
    assert codec.decode_request(codec.encode_request(one)) == one


WANTED = st.one_of(
    st.builds(ResetAnswer, st.none() | OFFSETS, OFFSETS, U64, st.booleans()),
    st.builds(SyncAnswer, st.none() | OFFSETS, U64, TEXT),
    st.builds(PositionsAnswer, U64, U64, U64),
    st.builds(HasMembers, st.lists(TEXT, max_size=3).map(tuple)),
    st.builds(Refused, TEXT, st.sampled_from(RefusalCode)),
)


@ROUND_TRIPS
@given(U64.filter(bool), U32, WANTED)
def test_every_answer_is_read_back(number: int, partition: int, answer: GroupAnswer):
    """Encoding loses nothing of an answer."""
    one = Response(number, partition, answer)
    assert codec.decode_response(codec.encode_response(one)) == one


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("0a", id="cut off"),
        pytest.param("1007 22066f7264657273 4a00", id="no client id"),
        pytest.param("0a0163 22066f7264657273 4a00", id="no number"),
    ],
)
def test_what_is_no_request_is_refused(data: str):
    """Cut off, or nobody can be answered."""
    with pytest.raises(DecodeError):
        codec.decode_request(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(f"{CLIENT_HEX} 1007 4a00", "MALFORMED", id="no topic"),
        pytest.param(f"{CLIENT_HEX} 1007 22022e2e 4a00", "MALFORMED", id="no topic's name"),
        pytest.param(
            f"{CLIENT_HEX} 1007 22066f7264657273 28ffffffff0f 4a00",
            "MALFORMED",
            id="high partition",
        ),
        pytest.param(f"{HEAD_HEX} 4200", "MALFORMED", id="sync of no group"),
        pytest.param(f"{HEAD_HEX} 320167", "UNSUPPORTED", id="nothing is asked"),
        pytest.param(f"{HEAD_HEX} 320167 7a00", "UNSUPPORTED", id="asked by a later version"),
        pytest.param(f"{HEAD_HEX} 320167 3a022804", "MALFORMED", id="a reset to nowhere"),
        pytest.param(
            f"{HEAD_HEX} 320167 3a0b 10ffffffffffffffffff01", "MALFORMED", id="an impossible time"
        ),
        pytest.param("0a0163 1007 22066f7264657273 4a00", "MALFORMED", id="a short client id"),
    ],
)
def test_c10_what_cannot_be_read_is_refused(data: str, code: str):
    """C10: a client that can be answered is told what is wrong with its request."""
    ask = codec.decode_request(bytes.fromhex(data)).body.ask
    assert isinstance(ask, Unreadable)
    assert ask.refusal.code is RefusalCode[code]
    assert ask.refusal.reason


@pytest.mark.parametrize("data", ["0807 1001", "0807 5a00"])
def test_c10_an_answer_of_a_later_version_is_a_refusal(data: str):
    """C10: one request fails, and its client goes on."""
    answer = codec.decode_response(bytes.fromhex(data)).answer
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.UNSUPPORTED


@pytest.mark.parametrize("data", ["08", "1001 1a00"])
def test_what_is_no_answer_is_refused(data: str):
    """Cut off, or without number."""
    with pytest.raises(DecodeError):
        codec.decode_response(bytes.fromhex(data))
