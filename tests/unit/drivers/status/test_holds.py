"""Which transactions hold readers back: read again only if something has changed."""

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.status.holds import HELD_MS, CoordinatedHolds
from stilltide.pipeline.drivers.status.transactions import Unended
from stilltide.schemas.coordinator.transactions import Description, Registered
from stilltide.schemas.headers import TXN
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId

ORDERS = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000


def unended(sequence: int, age_ms: int) -> Unended:
    """A transaction that may write to `ORDERS`."""
    registered = Registered(ORDERS, EndOffset(0), b"")
    opened_ms = NOW_MS - age_ms
    return Unended(
        TxnId(0, sequence), Description(sequence, "OPEN", opened_ms, 60_000, (registered,))
    )


async def test_a_record_is_found_though_the_transactions_are_the_same():
    """A registered transaction holds nobody back until it has written; then at that record."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    connector = MemoryConnector(broker)
    admin = connector.admin()
    holds, undecided = CoordinatedHolds(connector, admin), (unended(7, 60_000),)
    assert await holds.read(undecided, NOW_MS) == ()
    broker.append(ORDERS, None, b"plain", None)
    assert await holds.read(undecided, NOW_MS) == ()
    broker.append(ORDERS, None, b"held", [(TXN, TxnId(0, 7).to_bytes())])
    (hold,) = await holds.read(undecided, NOW_MS)
    assert (hold.offset, hold.behind, hold.holder) == (1, 1, "0:7")
    broker.append(ORDERS, None, b"plain", None)
    (hold,) = await holds.read(undecided, NOW_MS)
    assert hold.behind == 2
    assert await holds.read((), NOW_MS) == ()
    await admin.close()


async def test_a_transaction_counts_from_a_certain_age_on():
    """It becomes old while nothing else happens, and may have written before an older one."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    connector = MemoryConnector(broker)
    admin = connector.admin()
    holds = CoordinatedHolds(connector, admin)
    undecided = (unended(7, HELD_MS + 1), unended(8, HELD_MS - 1))
    for sequence in (8, 7):
        broker.append(ORDERS, None, b"held", [(TXN, TxnId(0, sequence).to_bytes())])
    (hold,) = await holds.read(undecided, NOW_MS)
    assert hold.holder == "0:7"
    (hold,) = await holds.read(undecided, NOW_MS + 1)
    assert hold.holder == "0:8"
    await admin.close()
