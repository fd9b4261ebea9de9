"""`ColumnReader`, `CopyWriter`: promises of `ports.copying`, on every connector."""

import asyncio
import time
from typing import cast

import pytest

from stilltide.connectors.errors import FatalError, FencedError, RetriableError
from stilltide.connectors.ports.copying import (
    ColumnReader,
    Columns,
    Copies,
    CopyWriter,
    LinkConnector,
    Span,
)
from stilltide.connectors.ports.readers import EndReached, NewRecord
from stilltide.schemas.values import Offset, TopicPartition
from tests.contract.rig import WAIT_S, Rig, create, read_to_ends, write

HEADERS: list[tuple[str, bytes | None]] = [("one", b"1"), ("two", None), ("one", b"")]


def _link(rig: Rig) -> LinkConnector:
    return cast("LinkConnector", rig.connector)


WRITTEN_MS = round(time.time() - 3600) * 1000
"""Recent: retention deletes what is a week old."""


def _copies(*values: bytes | None, at_ms: int = WRITTEN_MS) -> Copies:
    count = len(values)
    return Copies([b"k"] * count, values, range(at_ms, at_ms + count), [HEADERS] * count)


async def _opened(writer: CopyWriter) -> CopyWriter:
    await writer.fence()
    await writer.begin()
    return writer


async def _copied(writer: CopyWriter, data: TopicPartition) -> None:
    await writer.copy(data, _copies(b"a"), Span())
    await writer.flush()


async def _columns(reader: ColumnReader, count: int) -> list[Columns]:
    """Reads until so many records have come."""
    found: list[Columns] = []
    async with asyncio.timeout(WAIT_S):
        while sum(len(one.offsets) for one in found) < count:
            found += [it for it in await reader.read() if isinstance(it, Columns)]
    return found


async def test_what_is_copied_is_read_by_columns(rig: Rig, log: TopicPartition):
    """Values, keys, headers in order with repeats; a tombstone too; offsets ascend."""
    writer = await _opened(_link(rig).copy_writer("c-columns"))
    await writer.copy(log, _copies(b"a", None, b"c"), Span())
    await writer.flush()
    await writer.commit([])
    reader = _link(rig).column_reader("r")
    await reader.assign({log: Offset(0)})
    found = await _columns(reader, 3)
    assert {one.data for one in found} == {log}
    assert [it for one in found for it in one.values] == [b"a", None, b"c"]
    assert [it for one in found for it in one.keys] == [b"k"] * 3
    assert [it for one in found for it in one.offsets] == [0, 1, 2]
    assert [list(it or ()) for one in found for it in one.headers] == [HEADERS] * 3
    await reader.close()
    await writer.close()


async def test_columns_are_of_one_partition(rig: Rig, log: TopicPartition):
    """Records of several come apart, and ends between them."""
    other = TopicPartition(log.topic, 1)
    await write(rig, log, b"a", b"b")
    await write(rig, other, b"c")
    reader = _link(rig).column_reader("r")
    await reader.assign({log: Offset(1), other: Offset(0)})
    seen: dict[TopicPartition, list[bytes | None]] = {}
    ends: dict[TopicPartition, int] = {}
    async with asyncio.timeout(WAIT_S):
        while ends != {log: 2, other: 1}:
            for item in await reader.read():
                if isinstance(item, EndReached):
                    ends[item.data] = item.end_offset
                else:
                    assert item.headers == [None] * len(item.offsets)
                    seen.setdefault(item.data, []).extend(item.values)
    assert seen == {log: [b"b"], other: [b"c"]}
    await reader.close()


async def test_spans_say_where_copies_lie(rig: Rig, log: TopicPartition):
    """Before the commit; several calls may share one, and others write between."""
    writer = await _opened(_link(rig).copy_writer("c-spans"))
    first, second, none = Span(), Span(), Span()
    await writer.copy(log, _copies(b"a", b"b"), first)
    await writer.copy(log, _copies(), none)
    await writer.flush()
    await write(rig, log, b"between")
    await writer.copy(log, _copies(b"c"), first)
    await writer.copy(log, _copies(b"d"), second)
    await writer.flush()
    assert (first.first, first.end) == (0, 4)
    assert (second.first, second.end) == (4, 5)
    assert (none.first, none.end) == (None, None)
    await writer.commit([])
    await writer.close()


async def test_nothing_is_read_before_the_commit(rig: Rig, log: TopicPartition):
    """What others wrote behind it waits too; then all of it comes, the other records as well."""
    other = TopicPartition(log.topic, 1)
    admin = rig.connector.admin()
    await write(rig, log, b"before")
    writer = await _opened(_link(rig).copy_writer("c-open"))
    await writer.copy(log, _copies(b"a"), Span())
    await writer.flush()
    await write(rig, log, b"behind")
    assert await admin.end_offsets([log], committed=True) == {log: 1}
    assert await admin.end_offsets([log]) == {log: 3}
    await writer.commit([NewRecord(other, b"k", b"own")])
    reader = rig.connector.reader("r")
    await reader.assign({log: Offset(0), other: Offset(0)})
    async with asyncio.timeout(WAIT_S):
        found = await read_to_ends(reader, {log: 4, other: 2})
    assert found == {log: [b"before", b"a", b"behind"], other: [b"own"]}
    await reader.close()
    await admin.close()
    await writer.close()


@pytest.mark.parametrize("ended_by", ["close", "fence", "another"])
async def test_what_was_not_committed_is_never_read(rig: Rig, log: TopicPartition, ended_by: str):
    """What follows is read, however the transaction was ended."""
    writer = await _opened(_link(rig).copy_writer("c-abort"))
    await writer.copy(log, _copies(b"lost"), Span())
    await writer.flush()
    again = writer if ended_by == "fence" else _link(rig).copy_writer("c-abort")
    if ended_by == "close":
        await writer.close()
    await _opened(again)
    await again.copy(log, _copies(b"kept"), Span())
    await again.flush()
    await again.commit([])
    reader = _link(rig).column_reader("r")
    await reader.assign({log: Offset(0)})
    assert [it for one in await _columns(reader, 1) for it in one.values] == [b"kept"]
    await reader.close()
    await again.close()
    await writer.close()


async def test_who_is_fenced_commits_nothing(rig: Rig, log: TopicPartition):
    """It is told so at the latest when it commits."""
    zombie = await _opened(_link(rig).copy_writer("c-zombie"))
    await zombie.copy(log, _copies(b"early"), Span())
    await zombie.flush()
    second = _link(rig).copy_writer("c-zombie")
    await second.fence()
    with pytest.raises(FencedError):
        await zombie.commit([NewRecord(log, b"k", b"zombie")])
    await second.begin()
    await second.copy(log, _copies(b"second"), Span())
    await second.flush()
    await second.commit([])
    reader = _link(rig).column_reader("r")
    await reader.assign({log: Offset(0)})
    assert [it for one in await _columns(reader, 1) for it in one.values] == [b"second"]
    await reader.close()
    await zombie.close()
    await second.close()


@pytest.mark.parametrize("flushed_before", [False, True])
@pytest.mark.parametrize("flushes_every", [1, 10, 1000])
async def test_who_is_fenced_is_told_so_whatever_it_does(
    rig: Rig, log: TopicPartition, *, flushed_before: bool, flushes_every: int
):
    """While copies are under way or waited for; no other error stands in for it."""
    zombie = await _opened(_link(rig).copy_writer("c-busy"))
    many, few = _copies(*[b"early"] * 500), _copies(*[b"early"] * 50)
    for _ in range(20):
        await zombie.copy(log, many, Span())
    if flushed_before:
        await zombie.flush()
    second = _link(rig).copy_writer("c-busy")
    await second.fence()

    async def go_on() -> None:
        for turn in range(1, 301):
            await zombie.copy(log, few, Span())
            if turn % flushes_every == 0:
                await zombie.flush()
        await zombie.commit([])

    with pytest.raises(FencedError):
        await go_on()
    await zombie.close()
    await second.close()


async def test_a_copy_that_cannot_be_written_is_an_error(rig: Rig, log: TopicPartition):
    """At the latest when it is flushed; the next transaction begins with `fence`."""
    writer = await _opened(_link(rig).copy_writer("c-missing"))
    missing = TopicPartition(log.topic, 7)
    with pytest.raises(FatalError):
        await _copied(writer, missing)
    await _opened(writer)
    await writer.copy(log, _copies(b"b"), Span())
    await writer.flush()
    await writer.commit([])
    await writer.close()


async def test_a_topic_that_takes_small_batches_gets_small_ones(rig: Rig, topic_name: str):
    """Smaller ones follow a refused batch; a record that is too large is not tried again."""
    await create(rig, topic_name, max_message_bytes="20000")
    data = TopicPartition(topic_name, 0)
    values = [bytes(100)] * 1000
    await _passes_in_the_end(rig, data, *values)
    reader = _link(rig).column_reader("r")
    await reader.assign({data: Offset(0)})
    found = await _columns(reader, len(values))
    assert sum(len(one.values) for one in found) == len(values)
    await reader.close()
    with pytest.raises(FatalError):
        await _passes_in_the_end(rig, data, bytes(30_000))
    await _passes_in_the_end(rig, data, b"small")


async def _passes_in_the_end(rig: Rig, data: TopicPartition, *values: bytes) -> None:
    """Copies these; a writer begins again after an error after which it may, then another one."""
    async with asyncio.timeout(WAIT_S):
        while True:
            writer = _link(rig).copy_writer("c-batches")
            try:
                if await _passes(writer, data, *values) or await _passes(writer, data, *values):
                    return
            finally:
                await writer.close()


async def _passes(writer: CopyWriter, data: TopicPartition, *values: bytes) -> bool:
    """Whether a transaction with these copies is committed."""
    try:
        await _opened(writer)
        await writer.copy(data, _copies(*values), Span())
        await writer.flush()
        await writer.commit([])
    except RetriableError:
        return False
    return True


async def test_a_copy_writer_wants_to_be_fenced_and_open(rig: Rig, log: TopicPartition):
    """Nothing is written before `fence`, or after `close`."""
    writer = _link(rig).copy_writer("c-order")
    with pytest.raises(FatalError, match="fenced"):
        await writer.copy(log, _copies(b"a"), Span())
    await writer.close()
    await writer.close()
    with pytest.raises(FatalError, match="closed"):
        await writer.fence()
