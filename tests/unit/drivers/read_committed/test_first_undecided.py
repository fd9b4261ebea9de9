"""Rules D2, D4, K1: where a range ends if nobody knows the outcome of a record."""

from stilltide.pipeline.drivers.read_committed.browse import find_first_undecided
from stilltide.pipeline.drivers.snapshots.outcomes import gather_evidence
from stilltide.schemas.headers import TXN
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TxnId
from tests.support.snapshots.evidence_rig import FIRST, ORDERS, SECOND, EvidenceRig

ABORTED = TxnId(0, 7)
"""In the rig's snapshot."""


async def first(rig: EvidenceRig, start: int) -> object:
    """The first undecided record from an offset on."""
    evidence = await gather_evidence(rig.connector, ["orders"])
    (log,) = evidence.data
    reader = rig.connector.reader("test")
    try:
        reads = [OffsetRange(ORDERS, Offset(start), EndOffset(log.end))]
        return (await find_first_undecided(reader, reads, evidence)).get(ORDERS)
    finally:
        await reader.close()


async def test_markers_and_snapshots_decide():
    """Plain and malformed records are decided; so is what a marker or the snapshot names."""
    rig = EvidenceRig()
    rig.write(end=rig.end())
    rig.record(ABORTED)
    rig.record(FIRST)
    rig.broker.append(ORDERS, None, b"v", [(TXN, b"short")])
    waits = rig.record(SECOND)
    rig.record(TxnId(0, 9))
    rig.mark(FIRST)
    assert await first(rig, 0) == (waits, SECOND)
    rig.mark(SECOND, committed=False)
    assert await first(rig, 0) == (waits + 1, TxnId(0, 9))
    rig.mark(TxnId(0, 9))
    assert await first(rig, 2) is None
