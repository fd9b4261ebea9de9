"""Bytes of snapshot-requests and of their answers (E7)."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.service.envelopes import RefusalCode, Refused, Request, Response
from stilltide.schemas.snapshots import requests as codec
from stilltide.schemas.snapshots.requests import SnapshotAnswer, SnapshotSummary
from stilltide.schemas.topics import is_topic_name
from stilltide.schemas.values import PARTITION_MAX, EndOffset, TopicPartition
from tests.support.schemas.wire import DATA_PARTITIONS, ROUND_TRIPS, TEXT, U32, U64

ORDERS = TopicPartition("orders", 2)
CLIENT_ID = b"c" * 16
REQUEST = Request(CLIENT_ID, 7, 0, 3, ORDERS)
REQUEST_HEX = f"0a10 {CLIENT_ID.hex()} 1007 1803 22066f7264657273 2802"
TOPIC_ID = bytes(range(16))
ANSWERS: dict[str, tuple[SnapshotAnswer, str]] = {
    "summary": (
        SnapshotSummary(TOPIC_ID, EndOffset(300), 5),
        "1a17 0a10000102030405060708090a0b0c0d0e0f 10ac02 1805",
    ),
    "an empty partition": (SnapshotSummary(b"", EndOffset(0), 0), "1a00"),
    "refused": (Refused("why"), "2205 0a03776879"),
}


def test_request_bytes():
    """A request has exactly these bytes, and is read back from them."""
    data = bytes.fromhex(REQUEST_HEX)
    assert codec.encode_request(REQUEST) == data
    assert codec.decode_request(data) == REQUEST


@pytest.mark.parametrize("name", ANSWERS)
def test_answer_bytes(name: str):
    """Every kind of answer has exactly these bytes, and is read back from them."""
    answer, body = ANSWERS[name]
    response = Response(7, 1, answer)
    data = bytes.fromhex(f"0807 1001 {body}")
    assert codec.encode_response(response) == data
    assert codec.decode_response(data) == response


PARTITIONS = DATA_PARTITIONS.filter(
    lambda it: is_topic_name(it.topic) and it.partition <= PARTITION_MAX
)


@ROUND_TRIPS
@given(st.binary(min_size=16, max_size=16), U64.filter(bool), U32, PARTITIONS)
def test_every_request_is_read_back(
    client_id: bytes, number: int, reply_partition: int, data: TopicPartition
):
    """Encoding loses nothing of a request."""
    one = Request(client_id, number, 0, reply_partition, data)
    assert codec.decode_request(codec.encode_request(one)) == one


SUMMARIES = st.builds(SnapshotSummary, st.binary(), U64.map(EndOffset), U64)


@ROUND_TRIPS
@given(U64.filter(bool), U32, SUMMARIES | st.builds(Refused, TEXT, st.just(RefusalCode.ILLEGAL)))
def test_every_answer_is_read_back(number: int, partition: int, answer: SnapshotAnswer):
    """Encoding loses nothing of an answer."""
    one = Response(number, partition, answer)
    assert codec.decode_response(codec.encode_response(one)) == one


@pytest.mark.parametrize("data", ["0a", "1007 22026f72", "0a0163 22026f72", "0a0163 1007 2201ff"])
def test_what_is_no_request_is_refused(data: str):
    """Cut off, without client id, number or topic, or not in UTF-8."""
    with pytest.raises(DecodeError):
        codec.decode_request(bytes.fromhex(data))


@pytest.mark.parametrize("data", ["0807 1001", "0807 3a00"])
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
