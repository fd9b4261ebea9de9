"""Notices of owners that have ended (B8): golden bytes."""

import pytest

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.service.envelopes import (
    OwnerEnded,
    client_key,
    decode_notice,
    encode_notice,
    notice_key,
)

CLIENT = b"0123456789abcdef"


def test_a_notice_has_these_bytes():
    """Owner, cause and next step."""
    notice = OwnerEnded(3, "damaged", "repair")
    assert encode_notice(notice) == b"\x08\x03\x12\x07damaged\x1a\x06repair"
    assert decode_notice(encode_notice(notice)) == notice


def test_clients_of_earlier_versions_pass_a_notice_over():
    """Its key is neither the client's id nor its hash."""
    assert notice_key(CLIENT) == b"ended:" + client_key(CLIENT)


def test_other_bytes_are_no_notice():
    """They are passed over, and counted as foreign."""
    with pytest.raises(DecodeError):
        decode_notice(b"\xff")
    assert decode_notice(None) == OwnerEnded(0, "", "")
