from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.core.offset_index.intervals import RangeSet
from stilltide.pipeline.core.pending_ack.cursor import (
    METADATA_CHARS_MAX,
    SET_BYTES_MAX,
    SPAN_MAX,
    Cursor,
    always_fits,
    decode,
    encode,
)
from stilltide.schemas.errors import DecodeError, UnknownVersionError
from stilltide.schemas.values import Offset

offsets = st.integers(0, 2**40)
sets = st.sets(st.one_of(st.integers(1, 300), st.integers(1, 40_000), st.integers(1, 2**30)))


def cursor_of(offset: int, above: set[int], fields: tuple[str, ...] = ()) -> Cursor:
    """A cursor with single offsets acknowledged, counted from it; the first one is not."""
    ranges = RangeSet((offset + it, offset + it + 1) for it in sorted(above))
    return Cursor(Offset(offset), ranges.ranges(), fields)


def alternating(count: int, step: int = 2) -> set[int]:
    """This many offsets, of which no two are adjacent."""
    return {step * number + 1 for number in range(count)}


@given(offsets, sets)
def test_what_is_encoded_is_decoded(offset: int, above: set[int]):
    """G: a set of any shape comes back as it was, in ASCII that a broker takes."""
    cursor = cursor_of(offset, above)
    metadata = encode(cursor)
    assert metadata.isascii()
    assert len(metadata) <= METADATA_CHARS_MAX
    assert decode(cursor.offset, metadata) == cursor


@given(st.data())
def test_what_always_fits_is_never_left_out(data: st.DataObject):
    """G: as long as `always_fits` holds, any subset of what is unacknowledged may be."""
    count = data.draw(st.integers(1, 600))
    span = data.draw(st.integers(count, 10**7))
    unacknowledged = sorted(data.draw(st.sets(st.integers(0, span - 1), max_size=count)) | {0})
    kept = {it for it in unacknowledged if data.draw(st.booleans())} | {0}
    edges = [*sorted(kept), span]
    ranges = RangeSet((one + 1, other) for one, other in pairwise(edges))
    cursor = Cursor(Offset(0), ranges.ranges())
    if always_fits(len(unacknowledged), span):
        assert decode(Offset(0), encode(cursor)) == cursor


@pytest.mark.parametrize(
    "above", [alternating(SPAN_MAX // 2), alternating(SET_BYTES_MAX // 6, 60_000)]
)
def test_the_worst_sets_that_fit(above: set[int]):
    """As many single offsets as a bitmap takes, and as many far apart as runs take."""
    cursor = cursor_of(5, above)
    assert decode(cursor.offset, encode(cursor)) == cursor


def test_what_does_not_fit_is_left_out_from_the_top():
    """The lowest acknowledgements are kept: a smaller claim is delivered again, never lost."""
    cursor = cursor_of(5, alternating(5000, 1000))
    kept = decode(cursor.offset, encode(cursor))
    assert kept is not None
    assert 0 < len(kept.acknowledged) < 5000
    assert kept.acknowledged == cursor.acknowledged[: len(kept.acknowledged)]
    assert not always_fits(5000, 5_000_000)


def test_golden_metadata():
    """Bytes of the two forms: what groups have committed must stay readable."""
    assert encode(Cursor(Offset(7))) == ""
    assert encode(cursor_of(7, {2, *range(993, 1293)})) == "st1;a=rAgHeB6wC"
    assert encode(cursor_of(7, {1, 3, 5, 6, 9})) == "st1;a=bNQE"
    assert encode(Cursor(Offset(7), (), ("g=4",))) == "st1;g=4"


def test_fields_of_others_are_kept():
    """What a later version adds, or another part has written, survives a commit."""
    cursor = decode(Offset(7), "st1;g=4;a=bAg;zz")
    assert cursor == Cursor(Offset(7), ((9, 10),), ("g=4", "zz"))
    assert cursor is not None
    assert encode(cursor) == "st1;a=bAg;g=4;zz"


@given(st.text(alphabet="abcs1;=xA ", max_size=12).filter(lambda it: not it.startswith("st")))
def test_metadata_of_others_says_nothing(metadata: str):
    """Metadata of another tool differs from empty metadata, and is never an error."""
    assert decode(Offset(3), metadata) == (None if metadata else Cursor(Offset(3)))


@pytest.mark.parametrize(
    "text", ["", "x", "rA", "rAg", "r!!!!", "rAAE", "rgICAgICAgICAgICAAQ", "r____________fwE", "bA"]
)
def test_a_damaged_set_is_refused(text: str):
    """Acknowledgements of transactions may be kept nowhere else: nothing is guessed."""
    with pytest.raises(DecodeError, match="commit metadata"):
        decode(Offset(3), f"st1;a={text}")


def test_two_sets_are_refused():
    """Neither of them is the right one."""
    with pytest.raises(DecodeError, match="two sets"):
        decode(Offset(3), "st1;a=rAQE;a=rAQE")


def test_a_later_version_is_refused():
    """Metadata of a later version may hold acknowledgements that this program would lose."""
    with pytest.raises(UnknownVersionError, match="kind 'z'"):
        decode(Offset(3), "st1;a=z~~")


@pytest.mark.parametrize("metadata", ["st2", "st2;a=rAQE", "st", "st1 ", "ST1;a=rAQE", ";"])
def test_a_strangers_metadata_is_passed_over(metadata: str):
    """Whatever its tag: a later format of this program keeps the tag `st1`."""
    assert decode(Offset(3), metadata) is None
