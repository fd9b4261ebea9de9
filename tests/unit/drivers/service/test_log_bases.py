"""Bases and trims on the memory broker (C8): what is written, and what is reported."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.service.own.owner import LogBases
from stilltide.schemas.coordinator.txn_log import decode, encode_own
from stilltide.schemas.framing import decode_value
from stilltide.schemas.log_frames import PIECE_BYTES_MAX, Base
from stilltide.schemas.topics import TXN_LOG, TopicSpec
from stilltide.schemas.values import EndOffset, Offset
from tests.support.buffered_log.appending import append_and_wait
from tests.support.buffered_log.owner import LOG, Owner
from tests.support.coordinator.worker_memory import until

pytestmark = pytest.mark.topics(TopicSpec(TXN_LOG, 1, {"max.message.bytes": "5242880"}))

AS_OF = EndOffset(1)


class Bases:
    """The bases of a serving owner, and what was reported."""

    def __init__(self, connector: MemoryConnector, owner: Owner) -> None:
        self.lost: list[int] = []
        self.trims: list[tuple[int, bool]] = []
        self.append = owner.log.append
        self.it = LogBases(LOG, connector.admin(), self)

    def own(self, base: Base) -> bytes:
        """Bytes of a base's record."""
        return encode_own(base, 0)

    def base_lost(self, as_of: EndOffset) -> None:
        """Notes a base that is lost."""
        self.lost.append(as_of)

    def trimmed(self, offset: Offset, *, done: bool) -> None:
        """Notes how a trim went."""
        self.trims.append((offset, done))


@pytest.fixture
async def owner(broker: MemoryBroker) -> AsyncIterator[Owner]:
    """A serving owner."""
    made = Owner(MemoryConnector(broker))
    await made.serving()
    yield made
    await made.close()


@pytest.fixture
async def bases(broker: MemoryBroker, owner: Owner) -> Bases:
    """Its bases."""
    return Bases(MemoryConnector(broker), owner)


async def test_a_state_is_appended_in_pieces(broker: MemoryBroker, owner: Owner, bases: Bases):
    """The pieces come in order, each fit for an entry, and join to the parts."""
    parts = [bytes([number % 256]) * 1000 for number in range(1200)]
    bases.it.write(AS_OF, iter(parts))
    await until(lambda: sum(len(records) for records, _ in owner.entries) == 3)
    pieces = [decode(it).body for records, _ in owner.entries for it in records]
    assert all(isinstance(it, Base) and len(it.state) <= PIECE_BYTES_MAX for it in pieces)
    assert b"".join(it.state for it in pieces if isinstance(it, Base)) == b"".join(parts)
    assert [it.piece_index for it in pieces if isinstance(it, Base)] == [0, 1, 2]
    assert bases.lost == []


async def test_a_piece_that_is_lost_is_reported(broker: MemoryBroker, owner: Owner, bases: Bases):
    """B5: what never landed will not be a base."""
    broker.down()
    bases.it.write(AS_OF, [b"state"])
    await until(lambda: owner.log._owner is not None and owner.log._owner.in_flight > 1)
    broker.up()
    await until(lambda: bases.lost)
    assert bases.lost == [AS_OF]
    assert all(b"state" not in decode_value(it.value)[0] for it in broker.records(LOG))


async def test_a_trim_is_reported_as_it_went(broker: MemoryBroker, owner: Owner, bases: Bases):
    """C8: a refusal, as for an offset beyond the end, changes nothing and ends nothing."""
    await append_and_wait(owner.log, b"entry")
    bases.it.trim(Offset(9))
    await until(lambda: bases.trims)
    bases.it.trim(Offset(1))
    await until(lambda: len(bases.trims) == 2)
    assert bases.trims == [(9, False), (1, True)]
    log = broker.log(LOG)
    assert log is not None
    assert (log.start, log.end) == (1, 2)


async def test_nothing_is_written_after_the_ownership(
    broker: MemoryBroker, owner: Owner, bases: Bases
):
    """B4: a base that is made while its owner is fenced stays unwritten, without a word."""
    bases.it.write(AS_OF, [b"first"])
    bases.it.close()
    await owner.close()
    bases.it.write(AS_OF, [b"second"])
    await asyncio.gather(*bases.it._tasks, return_exceptions=True)
    assert len(broker.records(LOG)) == 1
