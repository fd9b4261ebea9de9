"""Sample values and Hypothesis strategies of everything about acknowledgements."""

import hypothesis.strategies as st

from schemas.acknowledgements import (
    AckBody,
    Acknowledge,
    AckRefusalCode,
    AckRefused,
    AckRequest,
    AckResponse,
    Acks,
    AckState,
    Attach,
    BaseCoordinator,
    BaseSubscription,
    CursorMoved,
    DescribeAcks,
    OffsetRange,
    PendingAcks,
    Ranges,
    Settle,
)
from schemas.bases import Base
from schemas.transactions import Done, Fence, Noop
from schemas.values import EndOffset, Offset, SubscriptionId, TxnId
from tests.support.wire import DATA_PARTITIONS, IDS, READ, TEXT, U32, U64

TXN = TxnId(2, 7)
MEMBER = bytes(range(16))

OFFSETS = U64.map(Offset)
TXNS = st.builds(TxnId, U64, U64)


def _ranges(bounds: list[int]) -> Ranges:
    ascending = sorted(bounds)
    pairs = zip(ascending[::2], ascending[1::2], strict=False)
    return tuple(OffsetRange(Offset(first), EndOffset(end)) for first, end in pairs)


RANGES = st.lists(U64, max_size=6, unique=True).map(_ranges)
ACK_BODIES: st.SearchStrategy[AckBody] = st.one_of(
    st.builds(Attach, IDS, U64.map(EndOffset), RANGES),
    st.builds(
        Acknowledge, TXNS, IDS, st.lists(OFFSETS, max_size=4).map(tuple), st.none() | OFFSETS
    ),
    st.builds(CursorMoved, IDS, U64.map(EndOffset), RANGES),
    st.builds(Settle, TXNS, st.booleans(), U64),
    st.builds(DescribeAcks),
)
ACK_REQUESTS = st.builds(
    AckRequest,
    st.binary(min_size=1, max_size=20),
    st.integers(1, 2**64 - 1),
    U32,
    st.builds(SubscriptionId, DATA_PARTITIONS, TEXT),
    ACK_BODIES,
)
PENDING = st.builds(PendingAcks, TXNS, RANGES, st.none() | OFFSETS)
ACKS = st.builds(
    Acks,
    U64.map(EndOffset),
    RANGES,
    st.lists(PENDING, max_size=3).map(tuple),
    st.just(b"") | IDS,
)
ACK_ANSWERS = st.one_of(
    st.builds(Done), st.builds(AckRefused, st.sampled_from(AckRefusalCode), TEXT), ACKS
)
ACK_RESPONSES = st.builds(AckResponse, st.integers(1, 2**64 - 1), U32, ACK_ANSWERS)
SEQUENCES = st.lists(st.integers(0, 2**64 - 1), max_size=6, unique=True).map(
    lambda bounds: tuple((int(first), int(end)) for first, end in _ranges(bounds))
)
ACK_STATES = st.builds(
    AckState,
    U64,
    st.lists(
        st.builds(
            BaseSubscription,
            st.builds(SubscriptionId, DATA_PARTITIONS, TEXT),
            ACKS,
            U64.map(EndOffset),
            st.lists(st.tuples(IDS, U64), max_size=3).map(tuple),
            U64,
        ),
        max_size=3,
    ).map(tuple),
    st.lists(st.builds(BaseCoordinator, U64, U64, SEQUENCES), max_size=3).map(tuple),
)
BASES = st.integers(1, 2**32 - 1).flatmap(
    lambda count: st.builds(
        Base,
        U64.map(EndOffset),
        st.integers(0, count - 1),
        st.just(count),
        st.binary(max_size=20),
    )
)
OWN_ACK_BODIES = st.one_of(st.builds(Fence, IDS), st.builds(Noop), BASES)


def ack_request(body: AckBody) -> AckRequest:
    """Request number 2 of client `c`."""
    return AckRequest(b"c", 2, 4, READ, body)
