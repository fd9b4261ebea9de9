"""The place of a record in the errors of the block that reads it."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from stilltide.schemas.errors import (
    DecodeError,
    OversizeError,
    StilltideError,
    placed,
    placed_each,
)


class Lying(NamedTuple):
    """A record, as far as its place goes."""

    topic: str
    partition: int
    offset: int


class End(NamedTuple):
    """An end of what was read; it has a partition and no offset."""

    topic: str
    partition: int


RECORDS = tuple(Lying("orders", 3, offset) for offset in (7, 9, 12))


@pytest.mark.parametrize("records", [RECORDS, list(RECORDS)])
@pytest.mark.parametrize("broken", RECORDS)
def test_an_error_in_a_loop_names_the_record_that_the_loop_took(
    records: Sequence[Lying], broken: Lying
):
    """First, middle or last; in a tuple or a list; a subclass of the error too."""
    seen: list[Lying] = []

    def read() -> None:
        with placed_each(records) as each:
            for record in each:
                seen.append(record)
                if record == broken:
                    raise OversizeError("too long")

    with pytest.raises(OversizeError) as caught:
        read()
    assert caught.value.place == f"orders/3@{broken.offset}"
    assert seen[-1] == broken


def test_an_error_in_a_block_names_its_record():
    """The error is the one that was raised."""
    error = DecodeError("not a marker")
    with pytest.raises(DecodeError) as caught, placed(RECORDS[1]):
        raise error
    assert caught.value is error
    assert str(error) == "orders/3@9: not a marker"


def test_without_error_all_records_are_seen():
    """The block changes nothing; an empty sequence is none."""
    with placed_each(RECORDS) as each:
        assert tuple(each) == RECORDS
    with placed_each(RECORDS[:0]) as none:
        assert list(none) == []


def test_other_errors_have_no_place_unless_asked_for():
    """By default only decode errors are about the record."""
    with pytest.raises(StilltideError) as caught, placed(RECORDS[0]):
        raise StilltideError("the broker is away")
    assert not caught.value.place
    with pytest.raises(StilltideError) as caught, placed(RECORDS[0], StilltideError):
        raise StilltideError("two outcomes")
    assert caught.value.place == "orders/3@7"


def test_an_error_that_names_an_offset_keeps_its_place():
    """What raised it knew better."""
    with pytest.raises(DecodeError) as caught, placed(RECORDS[0]):
        raise DecodeError("broken", topic="payments", partition=0, offset=4)
    assert caught.value.place == "payments/0@4"


def test_an_end_of_a_partition_gives_no_offset():
    """An error at what is no record names the partition alone."""
    with pytest.raises(DecodeError) as caught, placed(End("orders", 3)):
        raise DecodeError("broken")
    assert caught.value.place == "orders/3"
