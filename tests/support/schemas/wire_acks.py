"""Sample values and Hypothesis strategies of acknowledgements."""

import hypothesis.strategies as st

from stilltide.schemas.log_frames import Base, Fence, LogFigures, Noop
from stilltide.schemas.pending_ack.acknowledgements import (
    AckBody,
    Acknowledge,
    AckQuestion,
    AckRequest,
    Acks,
    AckState,
    Attach,
    BaseCoordinator,
    BaseSubscription,
    CursorMoved,
    DescribeAcks,
    DescribeStore,
    PendingAcks,
    Settle,
    StoreStats,
    SubscriptionStats,
)
from stilltide.schemas.service.envelopes import (
    Done,
    Refused,
    Request,
    Response,
    codes_of,
)
from stilltide.schemas.v1 import pending_ack_pb2 as pb
from stilltide.schemas.values import EndOffset, Offset, Range, Ranges, SubscriptionId, TxnId
from tests.support.schemas.wire import DATA_PARTITIONS, IDS, KEYS, LOG_FIGURES, READ, TEXT, U32, U64

TXN = TxnId(2, 7)
MEMBER = bytes(range(16))
SUBSCRIPTION_STATS = SubscriptionStats(
    subscription=READ,
    attached=True,
    cursor=EndOffset(3),
    committed=EndOffset(4),
    acknowledged_ranges=5,
    pending_transactions=6,
    pending_individual=7,
    pending_cumulative_offset=Offset(8),
    locked_offsets=9,
    has_served=True,
)
STORE_STATS = StoreStats(
    log=LogFigures(
        epoch=Offset(1),
        batching_enabled=True,
        batch_records_max=7,
        batch_bytes_max=8,
        batch_delay_us_max=9,
        flush_eager=True,
        entries_written=11,
        records_written=12,
        appends_in_flight=13,
        recovery_ms=16,
    ),
    subscription_count=2,
    transaction_count=3,
    pending_individual=4,
    pending_cumulative=5,
    buffered_records=14,
    buffered_bytes=15,
    base_as_of=EndOffset(17),
    log_records=18,
    subscriptions=(SUBSCRIPTION_STATS,),
    subscriptions_omitted=20,
)
"""Statistics of a pending-ack store, each value different."""

OFFSETS = U64.map(Offset)
TXNS = st.builds(TxnId, U64, U64)


def _ranges(bounds: list[int]) -> Ranges:
    ascending = sorted(bounds)
    pairs = zip(ascending[::2], ascending[1::2], strict=False)
    return tuple(Range(Offset(first), EndOffset(end)) for first, end in pairs)


RANGES = st.lists(U64, max_size=6, unique=True).map(_ranges)
LOG_ENDS = st.none() | U64.map(EndOffset)
ACK_BODIES: st.SearchStrategy[AckBody] = st.one_of(
    st.builds(Attach, IDS, U64.map(EndOffset), RANGES, TEXT, TEXT, IDS, LOG_ENDS, st.booleans()),
    st.builds(
        Acknowledge, TXNS, IDS, st.lists(OFFSETS, max_size=4).map(tuple), st.none() | OFFSETS, KEYS
    ),
    st.builds(CursorMoved, IDS, U64.map(EndOffset), RANGES),
    st.builds(Settle, TXNS, st.booleans(), U64, KEYS, LOG_ENDS),
    st.builds(DescribeAcks),
)
_ASKER = (IDS, st.integers(1, 2**64 - 1), st.just(0), U32)
SUBSCRIPTIONS = st.builds(SubscriptionId, DATA_PARTITIONS, TEXT)
ACK_REQUESTS = st.builds(
    Request,
    *_ASKER,
    st.builds(AckQuestion, SUBSCRIPTIONS, ACK_BODIES)
    | st.builds(AckQuestion, st.none(), st.builds(DescribeStore, TEXT, TEXT)),
)
PENDING = st.builds(PendingAcks, TXNS, RANGES, st.none() | OFFSETS, KEYS)
ACKS = st.builds(
    Acks,
    U64.map(EndOffset),
    RANGES,
    st.lists(PENDING, max_size=3).map(tuple),
    st.just(b"") | IDS,
)
STATISTICS = st.builds(
    StoreStats,
    log=LOG_FIGURES,
    subscription_count=U64,
    transaction_count=U64,
    pending_individual=U64,
    pending_cumulative=U64,
    buffered_records=U64,
    buffered_bytes=U64,
    base_as_of=st.none() | U64.map(EndOffset),
    log_records=U64,
    subscriptions=st.lists(
        st.builds(
            SubscriptionStats,
            subscription=SUBSCRIPTIONS,
            attached=st.booleans(),
            cursor=U64.map(EndOffset),
            committed=U64.map(EndOffset),
            acknowledged_ranges=U64,
            pending_transactions=U64,
            pending_individual=U64,
            pending_cumulative_offset=st.none() | OFFSETS,
            locked_offsets=U64,
            has_served=st.booleans(),
            client_key=KEYS,
            client_name=TEXT,
        ),
        max_size=2,
    ).map(tuple),
    subscriptions_omitted=U64,
)
_CODES = st.sampled_from(list(codes_of(pb.AckRefusalCode.items()).values()))
ACK_ANSWERS = st.one_of(st.builds(Done), st.builds(Refused, TEXT, _CODES), ACKS, STATISTICS)
ACK_RESPONSES = st.builds(Response, st.integers(1, 2**64 - 1), U32, ACK_ANSWERS)
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
            KEYS,
            TEXT,
            IDS,
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
    about = None if isinstance(body, DescribeStore) else READ
    return Request(b"c", 2, 0, 4, AckQuestion(about, body))
