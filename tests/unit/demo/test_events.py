"""Events of any newline-delimited JSON."""

import json
from pathlib import Path

import pytest

from stilltide.pipeline.demo.events import (
    ORDERS,
    PAYMENTS,
    SAMPLE,
    EventsFileError,
    parse,
    read_lines,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file to be written."""
    return tmp_path / "events.ndjson"


def test_lines_are_grouped_and_numbered(path: Path):
    """Blank lines are passed over and counted; the last group may be short."""
    path.write_bytes(b'{"a":1}\n\n{"a":2}\r\n  \n{"a":3}')
    groups = list(read_lines(path, 2))
    assert groups == [[(1, b'{"a":1}\n'), (3, b'{"a":2}\r\n')], [(5, b'{"a":3}')]]


def test_an_empty_file_has_no_group(path: Path):
    """Nothing to do is no failure."""
    path.write_bytes(b"")
    assert list(read_lines(path, 5)) == []


def test_a_file_that_cannot_be_read_is_named(path: Path):
    """A missing file, or a directory, is refused by name with the system's reason."""
    for unreadable, reason in ((path, "No such file"), (path.parent, "Is a directory")):
        with pytest.raises(EventsFileError, match="cannot read") as caught:
            list(read_lines(unreadable, 5))
        assert str(unreadable) in caught.value.primary
        assert reason in caught.value.detail


@pytest.mark.parametrize(
    ("line", "number", "topic", "key"),
    [
        (b'{"type":"order.placed","order_id":"o1"}', 2, ORDERS, b"o1"),
        (b'{"type":"payment.captured","order_id":"o1"}', 1, PAYMENTS, b"o1"),
        (b'{"id":7}', 1, ORDERS, b"7"),
        (b'{"id":7}', 2, PAYMENTS, b"7"),
        (b'{"type":null}', 3, ORDERS, None),
        (b'{"type":5}', 4, ORDERS, None),
    ],
)
def test_any_object_is_an_event(
    path: Path, line: bytes, number: int, topic: str, key: bytes | None
):
    """Type and key are used where they are there; the value is the line as it stands."""
    event = parse(path, number, line + b"\r\n")
    assert (event.topic, event.key, event.value) == (topic, key, line)


@pytest.mark.parametrize("line", [b'{"a":', b"\xff\xfe", b"plain text"])
def test_what_is_not_json_is_named_by_its_line(path: Path, line: bytes):
    """The error has file, line number and the next step."""
    with pytest.raises(EventsFileError, match=r"events\.ndjson line 12 is not JSON") as caught:
        parse(path, 12, line)
    assert "aborted" in caught.value.hint


@pytest.mark.parametrize("line", [b"[1]", b"7", b"null"])
def test_json_that_is_no_object_is_named_by_its_line(path: Path, line: bytes):
    """A number or list has no fields to go by."""
    with pytest.raises(EventsFileError, match="line 3 is not a JSON object"):
        parse(path, 3, line)


def test_the_sample_is_what_the_readme_says():
    """3600 events of both kinds, each with a key."""
    events = [
        parse(SAMPLE, number, line) for group in read_lines(SAMPLE, 5) for number, line in group
    ]
    assert len(events) == 3600
    assert {event.topic for event in events} == {ORDERS, PAYMENTS}
    assert all(event.key == json.loads(event.value)["order_id"].encode() for event in events)
