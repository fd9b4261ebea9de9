"""Bytes of txn-log records (B1, C): they must be readable for as long as the log is kept."""

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given

from stilltide.schemas.coordinator.requests import encode_request
from stilltide.schemas.coordinator.transactions import (
    Describe,
    Ended,
    ForgetClients,
    Open,
    TimedOut,
    TxnLogRecord,
)
from stilltide.schemas.coordinator.txn_log import OwnBody, decode, encode_own
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.framing import decode_value, encode_batch, encode_request_record
from stilltide.schemas.log_frames import Base, Fence, Noop
from stilltide.schemas.service.envelopes import Request
from stilltide.schemas.v1 import requests_pb2, txn_log_pb2
from stilltide.schemas.values import EndOffset
from tests.support.schemas.wire import (
    OWN_BODIES,
    REGISTERED,
    REQUESTS,
    ROUND_TRIPS,
    TOPIC_ID,
    U64,
    request,
)

AT_MS = 1_700_000_000_000
AT = "7880d095ffbc31"

OWN: dict[str, tuple[OwnBody, str]] = {
    "fence": (Fence(TOPIC_ID), "0a12 0a10000102030405060708090a0b0c0d0e0f"),
    "no-op": (Noop(), "1200"),
    "timed out": (TimedOut(7), "2202 0807"),
    "ended": (Ended(7), "2a02 0807"),
    "sequence 0 ended": (Ended(0), "2a00"),
    "base": (Base(EndOffset(9), 1, 2, b"ab"), "3a0a 0809 1001 1802 22026162"),
    "forget clients": (ForgetClients((b"a", b"bc")), "3207 120161 12026263"),
}
REQUEST = "1a0d 0a0163 1002 1801 2004 4202 0807"


@pytest.mark.parametrize(("body", "hex_bytes"), OWN.values(), ids=OWN)
def test_own_record_bytes(body: OwnBody, hex_bytes: str):
    """Every record an owner makes itself has exactly these bytes, and is read back from them."""
    data = bytes.fromhex(hex_bytes + AT)
    assert encode_own(body, AT_MS) == data
    assert decode(data) == TxnLogRecord(body, AT_MS)


def test_request_record_bytes():
    """C0: a request's record is the request's own bytes behind tag 3, then the owner's clock."""
    data = bytes.fromhex(REQUEST + AT)
    asked = request(Describe(7))
    assert encode_request_record(encode_request(asked), AT_MS) == data
    assert decode(data) == TxnLogRecord(asked, AT_MS)


@ROUND_TRIPS
@given(OWN_BODIES, U64)
def test_every_own_record_is_read_back(body: OwnBody, at_ms: int):
    """Encoding loses nothing of an owner's record."""
    assert decode(encode_own(body, at_ms)) == TxnLogRecord(body, at_ms)


@ROUND_TRIPS
@given(REQUESTS, U64)
def test_a_spliced_request_is_what_protobuf_would_build(one: Request, at_ms: int):
    """A: splicing serialised bytes gives the bytes of the message built the long way."""
    request_bytes = encode_request(one)
    built = txn_log_pb2.TxnLogRecord(
        request=requests_pb2.Request.FromString(request_bytes), at_ms=at_ms
    )
    spliced = encode_request_record(request_bytes, at_ms)
    assert spliced == built.SerializeToString()
    assert decode(spliced) == TxnLogRecord(one, at_ms)


def test_a_spliced_request_keeps_fields_of_a_later_version():
    """A: a request is stored as it arrived, with fields that this program does not know."""
    later = encode_request(request(Describe(7))) + bytes.fromhex("f2 06 01 78")
    record = txn_log_pb2.TxnLogRecord.FromString(encode_request_record(later, AT_MS))
    assert record.request.SerializeToString() == later


@pytest.mark.parametrize("size", [127, 128, 16_383, 16_384, 2_097_152])
def test_a_spliced_request_may_have_any_length(size: int):
    """A: the length is right on both sides of every boundary of its encoding."""
    one = Request(b"c" * size, 1, 0, 0, Describe(1))
    assert decode(encode_request_record(encode_request(one), 1)) == TxnLogRecord(one, 1)


def test_a_reader_that_knows_only_the_pip_reads_a_batch():
    """A: behind the prefix lies a message with one repeated record in field 1, as in PIP-160."""
    bodies = [Fence(TOPIC_ID), Noop(), Ended(7)]
    records = [encode_own(body, AT_MS) for body in bodies]
    opened = encode_request(request(Open(60_000, 1, (REGISTERED,))))
    records.append(encode_request_record(opened, AT_MS))
    value = encode_batch(records)
    batch = _pip_160_batch().FromString(value[4:])
    assert [one.SerializeToString() for one in batch.transaction_log] == records
    assert [one.WhichOneof("body") for one in batch.transaction_log] == [
        "fence",
        "noop",
        "ended",
        "request",
    ]
    assert value[4:] == batch.SerializeToString()


def test_a_batch_written_by_the_pip_is_read():
    """A: what PIP-160's own message serialises to, behind the prefix, is a batch of ours."""
    batch = _pip_160_batch()()
    batch.transaction_log.add(at_ms=AT_MS).timed_out.sequence = 7
    batch.transaction_log.add(at_ms=AT_MS).noop.SetInParent()
    value = bytes.fromhex("0e010001") + batch.SerializeToString()
    assert [decode(record).body for record in decode_value(value)] == [TimedOut(7), Noop()]


def _pip_160_batch():  # noqa: ANN202 - a class that protobuf makes at run time
    """`message BatchedTransactionMetadataEntry { repeated TxnLogRecord transaction_log = 1; }`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="pip_160.proto",
        package="pip",
        syntax="proto3",
        dependency=["stilltide/schemas/v1/txn_log.proto"],
    )
    message = file.message_type.add(name="BatchedTransactionMetadataEntry")
    message.field.add(
        name="transaction_log",
        number=1,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".stilltide.v1.TxnLogRecord",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(requests_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(txn_log_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("pip.BatchedTransactionMetadataEntry")
    )


@pytest.mark.parametrize(
    ("hex_bytes", "primary"),
    [
        ("ff", "not a record of txn-log"),
        ("1a0d 0a0163 1002", "not a record of txn-log"),
        ("", "a record of txn-log is a value of no bytes"),
        (AT, "a txn-log record that this program does not know"),
        ("7200" + AT, "a txn-log record that this program does not know"),
        ("1a00" + AT, "a request without client id or number"),
        ("3a06 0809 1002 1802" + AT, "piece 2 of a base of 2 pieces"),
        ("1a05 0a0163 1002" + AT, "a request that this program does not know"),
    ],
    ids=[
        "garbage",
        "truncated",
        "empty",
        "no body",
        "later kind",
        "empty request",
        "no such piece",
        "no request",
    ],
)
def test_what_is_no_record_is_an_error(hex_bytes: str, primary: str):
    """Bytes that are not a complete, known record are refused with the reason."""
    with pytest.raises(DecodeError) as caught:
        decode(bytes.fromhex(hex_bytes))
    assert caught.value.primary == primary
