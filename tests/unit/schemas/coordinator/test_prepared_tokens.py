"""The text of tokens (L2): a text that is kept in a database is read back years later."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stilltide.schemas.coordinator.prepared_tokens import (
    PreparedToken,
    decode_token,
    encode_token,
    hash_of,
    token_id,
)
from stilltide.schemas.errors import PreparedTokenError, UnknownVersionError
from stilltide.schemas.values import SEQUENCE_MAX, TxnId
from tests.support.schemas.wire import ROUND_TRIPS

TOKEN = PreparedToken("5L6g3nShT-eMCtK--X86sw", TxnId(3, 300), bytes(range(32)), bytes(range(16)))
TEXT = (
    "stp_AQAAAAAAAAADAAAAAAAAASwAAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHwABAgMEBQYHCAkKCwwNDg"
    "81TDZnM25TaFQtZU1DdEstLVg4NnN3m9rVWw"
)
TOKENS = st.builds(
    PreparedToken,
    st.text(min_size=1, max_size=30),
    st.builds(TxnId, st.integers(0, 2**64 - 1), st.integers(0, SEQUENCE_MAX)),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=16, max_size=16),
)


def test_the_text_of_a_token():
    """A token has exactly this text, and is read back from it, with white space around it."""
    assert encode_token(TOKEN) == TEXT
    assert decode_token(TEXT) == TOKEN
    assert decode_token(f" {TEXT}\n") == TOKEN


@ROUND_TRIPS
@given(TOKENS)
def test_every_token_is_read_back(token: PreparedToken):
    """Encoding loses nothing of a token."""
    assert decode_token(encode_token(token)) == token


@ROUND_TRIPS
@given(st.data())
def test_a_cut_or_altered_token_is_told(data: st.DataObject):
    """A text that lacks characters, or has another one somewhere, is never taken for a token."""
    place = data.draw(st.integers(0, len(TEXT) - 1))
    other = data.draw(st.characters().filter(lambda it: it != TEXT[place]))
    for text in (TEXT[:place], TEXT[:place] + other + TEXT[place + 1 :], TEXT[:place] + TEXT):
        if text.strip() != TEXT:
            with pytest.raises((PreparedTokenError, UnknownVersionError)):
                decode_token(text)


@pytest.mark.parametrize("text", ["", "stp_", "17", "stp_A", "stp_\u00e4", "stp_" + "A" * 600])
def test_other_texts_are_no_tokens(text: str):
    """What is no token is refused, and the error says to take the whole text."""
    with pytest.raises(PreparedTokenError, match="hint: take the whole text"):
        decode_token(text)


def test_a_token_of_a_later_version():
    """A later version is named, never guessed."""
    later = (
        "stp_AgAAAAAAAAADAAAAAAAAASwAAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHwABAgMEBQYH"
        "CAkKCwwNDg9jU04_sw"
    )
    with pytest.raises(UnknownVersionError, match="version 2"):
        decode_token(later)


def test_what_a_token_shows():
    """Texts of a token name the transaction, never the secret; the name tells tokens apart."""
    shown = token_id(TOKEN.cluster_id, TOKEN.txn, hash_of(TOKEN.secret))
    assert shown == TOKEN.id == "5L6g3nShT-eMCtK--X86sw/3:300/630dcd2966c43366"
    assert repr(TOKEN) == f"PreparedToken({shown!r})"
    assert TOKEN._replace(secret=bytes(32)).id != TOKEN.id


def test_l2_a_token_belongs_to_its_topics():
    """L2: a token of another cluster, or of topics of before, is told before anybody is asked."""
    TOKEN.check(TOKEN.cluster_id, TOKEN.topic_id)
    with pytest.raises(PreparedTokenError, match="not of this client's"):
        TOKEN.check("another", TOKEN.topic_id)
    with pytest.raises(PreparedTokenError, match="older than the topics"):
        TOKEN.check(TOKEN.cluster_id, bytes(16))
