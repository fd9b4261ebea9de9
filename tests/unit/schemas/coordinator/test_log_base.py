"""Bytes of a coordinator's whole state (C8): a base is all that is left of a trimmed log."""

import pytest
from hypothesis import given

from stilltide.schemas.coordinator.transactions import (
    AbortCause,
    BaseClient,
    BaseOutcomes,
    BaseState,
    BaseTransaction,
    Opened,
    OperatorDecision,
    Preparation,
)
from stilltide.schemas.coordinator.txn_log import decode_state, encode_state
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.service.envelopes import Refused
from stilltide.schemas.v1 import txn_log_pb2 as pb
from tests.support.schemas.wire import BASE_STATES, READ, REGISTERED, ROUND_TRIPS, WRITTEN

STATE = BaseState(
    9,
    (
        BaseTransaction(7, "OPEN", 1000, 60, (REGISTERED,), (READ,), ()),
        BaseTransaction(8, "COMMITTING", 1000, 60, (), (), (WRITTEN,), b"k", "n"),
    ),
    (BaseClient(b"c", 2000, 3, 1, ((4, Opened(7, 2)), (5, Refused("no")))),),
    BaseOutcomes(3, b"\x05"),
    ((5, AbortCause.TIMED_OUT), (6, AbortCause.OPERATOR)),
)
BYTES = (
    "0809 "
    "122f 0807 1001 18e807 203c 2a1a 0a0174 1003 18ac02 2210000102030405060708090a0b0c0d0e0f "
    "3208 0a0174 1003 1a0167 "
    "121e 0808 1002 18e807 203c 3a0d 0a0174 1003 18ac02 20b602 2809 42016b 4a016e "
    "1a1e 10d00f 1803 2001 2a08 0804 1a04 08071002 2a08 0805 2a04 0a026e6f 320163 "
    "2205 0803 120105 "
    "2a08 0a020506 12020203"
)


def test_state_bytes():
    """Each part of a state has exactly these bytes, and is read back from them."""
    data = bytes.fromhex(BYTES)
    assert b"".join(encode_state(STATE)) == data
    assert decode_state(data) == STATE


def test_prepared_transactions_and_decisions():
    """L1, L8: what a base holds more; without them a base has the bytes of before."""
    preparation = Preparation(9, bytes(range(32)), "db")
    state = BaseState(
        9,
        (BaseTransaction(7, "PREPARED", 1, 2, (), (), (), preparation=preparation),),
        (),
        BaseOutcomes(0, b""),
        decisions=(OperatorDecision(5, False, 9, "why"),),
    )
    data = bytes.fromhex(
        "0809 1232 0807 1004 1801 2002 5228 0809 1220" + bytes(range(32)).hex() + "1a02 6462 "
        "2200 320b 0805 1002 1809 2203 776879"
    )
    assert b"".join(encode_state(state)) == data
    assert decode_state(data) == state


def test_an_unknown_cause_is_left_out():
    """A newer version may know more causes: nobody takes such an abort for the client's own."""
    aborts = decode_state(bytes.fromhex("2200 2a0a 0a03050607 1203020903")).aborts
    assert aborts == ((5, AbortCause.TIMED_OUT), (7, AbortCause.OPERATOR))


@ROUND_TRIPS
@given(BASE_STATES)
def test_every_state_is_read_back(state: BaseState):
    """Encoding loses nothing, order included, and is what protobuf would build at once."""
    data = b"".join(encode_state(state))
    assert decode_state(data) == state
    assert pb.BaseState.FromString(data).SerializeToString() == data


def test_the_empty_state():
    """A coordinator that nobody has used."""
    unused = BaseState(0, (), (), BaseOutcomes(0, b""))
    assert decode_state(b"".join(encode_state(unused))) == unused


@pytest.mark.parametrize(
    ("hex_bytes", "primary"),
    [
        ("ff", "not a coordinator's state"),
        (BYTES[:-2], "not a coordinator's state"),
        ("2200 1202 0807", "transaction 7 is in state 0"),
        ("2200 1204 0807 1009", "transaction 7 is in state 9"),
        ("2200 1a04 2a02 0804", "an answer that this program does not know"),
        ("0809", "a coordinator's state without outcomes"),
    ],
)
def test_what_is_no_state_is_an_error(hex_bytes: str, primary: str):
    """Bytes that are not a whole, known state are refused: nothing is guessed (C8)."""
    with pytest.raises(DecodeError, match=primary):
        decode_state(bytes.fromhex(hex_bytes))
