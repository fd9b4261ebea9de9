"""Sample values and Hypothesis strategies for everything that crosses a process."""

import hypothesis.strategies as st
from hypothesis import settings

from stilltide.schemas.coordinator.markers import (
    COORDINATORS_MAX,
    Barrier,
    Marker,
    OpenTransactions,
    Probe,
)
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AbortCause,
    AddPartitions,
    AddSubscriptions,
    BaseClient,
    BaseOutcomes,
    BaseState,
    BaseTransaction,
    CompactedTopic,
    CoordinatorStats,
    Decide,
    Describe,
    DescribeCoordinator,
    Description,
    End,
    Ended,
    EndPrepared,
    ForgetClients,
    Listed,
    ListTransactions,
    LiveEntry,
    LogLiveness,
    Open,
    Opened,
    OperatorDecision,
    Preparation,
    Prepare,
    Registered,
    Release,
    ReportedEnd,
    RequestBody,
    TimedOut,
    Unknown,
    WriteBarrier,
    Written,
)
from stilltide.schemas.log_frames import Base, Fence, FlushFigures, LogFigures, Noop
from stilltide.schemas.service.envelopes import (
    Done,
    Refused,
    Request,
    Response,
    codes_of,
)
from stilltide.schemas.topics import is_topic_name
from stilltide.schemas.v1 import requests_pb2 as pb
from stilltide.schemas.values import (
    PARTITION_MAX,
    SEQUENCE_MAX,
    EndOffset,
    Offset,
    SubscriptionId,
    TopicPartition,
    TxnId,
)

ROUND_TRIPS = settings(max_examples=100)
"""For properties of pure functions: enough to meet every branch, no limit on one example."""

TOPIC_ID = bytes(range(16))
DATA = TopicPartition("t", 3)
REGISTERED = Registered(DATA, EndOffset(300), TOPIC_ID)
READ = SubscriptionId(DATA, "g")
WRITTEN = Written(DATA, Offset(300), EndOffset(310), 9)
STATS = CoordinatorStats(
    log=LogFigures(
        epoch=Offset(1),
        batching_enabled=True,
        batch_records_max=9,
        batch_bytes_max=10,
        batch_delay_us_max=11,
        flush_eager=True,
        entries_written=13,
        records_written=14,
        appends_in_flight=15,
        recovery_ms=17,
    ),
    next_sequence=2,
    low_watermark=3,
    open_count=4,
    committing_count=5,
    aborting_count=6,
    has_served=True,
    markers_pending=16,
    client_count=18,
    answer_count=19,
    liveness=None,
)
"""A coordinator's statistics, each value different."""

FLUSHES = FlushFigures("idle", 1, 2, 3, 4, 5)
FLUSHES_HEX = "0a0469646c65 1001 1802 2003 2804 3005"
"""Figures of one trigger, and their bytes."""

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=8)
TOPICS = st.text("aZ0._-", min_size=1, max_size=8).filter(is_topic_name)
IDS = st.binary(min_size=16, max_size=16)
PROBES = st.builds(Probe, IDS, st.integers(1, 2**64 - 1))
DATA_PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(0, PARTITION_MAX))
REGISTRATIONS = st.lists(
    st.builds(Registered, DATA_PARTITIONS, U64.map(EndOffset), IDS), max_size=3
).map(tuple)
WRITINGS = st.lists(
    st.builds(Written, DATA_PARTITIONS, U64.map(Offset), U64.map(EndOffset), U64), max_size=3
).map(tuple)
SUBSCRIPTIONS = st.lists(st.builds(SubscriptionId, DATA_PARTITIONS, TEXT), max_size=3).map(tuple)
SECRETS = st.binary(min_size=32, max_size=32)
BODIES: st.SearchStrategy[RequestBody] = st.one_of(
    st.builds(
        Open,
        U64,
        st.integers(1, 2**32 - 1),
        REGISTRATIONS,
        SUBSCRIPTIONS,
        allow_compacted=st.booleans(),
    ),
    st.builds(AddPartitions, U64, REGISTRATIONS, st.booleans()),
    st.builds(AddSubscriptions, U64, SUBSCRIPTIONS),
    st.builds(End, U64, st.booleans(), WRITINGS, st.booleans(), st.none() | SUBSCRIPTIONS),
    st.builds(Release, st.lists(U64, max_size=3).map(tuple)),
    st.builds(Abort, U64),
    st.builds(Describe, U64, st.binary(max_size=32)),
    st.builds(ListTransactions, U64),
    st.builds(DescribeCoordinator),
    st.builds(WriteBarrier, U32, PROBES),
    st.builds(Prepare, U64, WRITINGS, st.none() | SUBSCRIPTIONS, SECRETS, TEXT),
    st.builds(EndPrepared, U64, st.booleans(), SECRETS, st.booleans()),
    st.builds(Decide, U64, st.booleans(), TEXT, SECRETS, st.booleans()),
)
REQUESTS = st.builds(
    Request, st.binary(min_size=1, max_size=20), st.integers(1, 2**64 - 1), U64, U32, BODIES
)
KEYS = st.just(b"") | IDS
"""Hashes of clients' ids; empty: of nobody."""

PREPARATIONS = st.builds(Preparation, U64, SECRETS, TEXT)
DECISIONS = st.lists(st.builds(OperatorDecision, U64, st.booleans(), U64, TEXT), max_size=2).map(
    tuple
)
DESCRIPTIONS = st.builds(
    Description,
    U64,
    TEXT,
    U64,
    U64,
    REGISTRATIONS,
    SUBSCRIPTIONS,
    KEYS,
    TEXT,
    st.none() | st.booleans(),
    st.none() | st.sampled_from(AbortCause),
    st.none() | PREPARATIONS,
)
ABORTS = st.dictionaries(U64, st.sampled_from(AbortCause), max_size=3).map(
    lambda it: tuple(it.items())
)
LIVE_ENTRIES = st.builds(LiveEntry, U64.map(Offset), st.integers(0, 2**40))
LIVENESS = st.builds(
    LogLiveness,
    st.none() | U64.map(Offset),
    U64,
    U64,
    st.lists(LIVE_ENTRIES, max_size=3).map(tuple),
)
LOG_FIGURES = st.builds(
    LogFigures,
    epoch=U64.map(Offset),
    batching_enabled=st.booleans(),
    batch_records_max=U32,
    batch_bytes_max=U64,
    batch_delay_us_max=U64,
    flush_eager=st.booleans(),
    entries_written=U64,
    records_written=U64,
    appends_in_flight=U64,
    recovery_ms=U64,
    flushes=st.lists(st.builds(FlushFigures, TEXT, U64, U64, U64, U64, U64), max_size=3).map(tuple),
)
STATISTICS = st.builds(
    CoordinatorStats,
    log=LOG_FIGURES,
    next_sequence=U64,
    low_watermark=U64,
    open_count=U64,
    committing_count=U64,
    aborting_count=U64,
    has_served=st.booleans(),
    markers_pending=U64,
    client_count=U64,
    answer_count=U64,
    liveness=st.none() | LIVENESS,
    ends=st.lists(st.builds(ReportedEnd, TEXT, TEXT, U64, TEXT, TEXT), max_size=2).map(tuple),
    as_of=U64.map(EndOffset),
    changed_at=U64.map(Offset),
    compacted=st.lists(st.builds(CompactedTopic, TEXT, U64), max_size=2).map(tuple),
    prepared_count=U64,
    oldest_prepared_ms=U64,
    commit_count=st.none() | U64,
    abort_count=st.none() | U64,
)
ANSWERS = st.one_of(
    st.builds(Opened, U64, U32),
    st.builds(Done),
    st.builds(Refused, TEXT, st.sampled_from(list(codes_of(pb.RefusalCode.items()).values()))),
    st.builds(Unknown),
    DESCRIPTIONS,
    st.builds(
        Listed,
        st.lists(DESCRIPTIONS, max_size=2).map(tuple),
        U64,
        U64,
        U64.map(EndOffset),
        ABORTS,
        U64,
        U64,
        U64,
        U64,
        DECISIONS,
    ),
    STATISTICS,
)
RESPONSES = st.builds(Response, st.integers(1, 2**64 - 1), U32, ANSWERS)
OWN_BODIES = st.one_of(
    st.builds(Fence, IDS),
    st.builds(Noop),
    st.builds(TimedOut, U64),
    st.builds(Ended, U64),
    st.builds(ForgetClients, st.lists(st.binary(max_size=20), max_size=3).map(tuple)),
    st.builds(
        Base, U64.map(EndOffset), st.integers(0, 6), st.integers(7, 9), st.binary(max_size=20)
    ),
)
BASE_STATES = st.builds(
    BaseState,
    U64,
    st.lists(
        st.builds(
            BaseTransaction,
            U64,
            st.sampled_from(["OPEN", "PREPARED", "COMMITTING", "ABORTING"]),
            U64,
            U64,
            REGISTRATIONS,
            SUBSCRIPTIONS,
            WRITINGS,
            KEYS,
            TEXT,
            st.none() | PREPARATIONS,
        ),
        max_size=2,
    ).map(tuple),
    st.lists(
        st.builds(
            BaseClient,
            IDS,
            U64,
            U64,
            U64,
            st.lists(st.tuples(st.integers(1, 2**64 - 1), ANSWERS), max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    st.builds(BaseOutcomes, U64, st.binary(max_size=20)),
    ABORTS,
    DECISIONS,
)
MARKERS = st.builds(
    Marker,
    DATA_PARTITIONS,
    st.builds(TxnId, st.integers(0, COORDINATORS_MAX), st.integers(0, SEQUENCE_MAX)),
    st.booleans(),
    U64.map(EndOffset),
    st.none() | U64.map(EndOffset),
    U64,
    IDS,
)
BARRIERS = st.builds(
    Barrier,
    U64,
    PROBES,
    U64,
    st.lists(
        st.builds(OpenTransactions, DATA_PARTITIONS, IDS, U64.map(EndOffset), U64, U64), max_size=3
    ).map(tuple),
)


def request(body: RequestBody) -> Request:
    """Request number 2 of client `c`, which acknowledges the answer to number 1."""
    return Request(b"c", 2, 1, 4, body)


def too_deep(request: bytes) -> bytes:
    """A request at the nesting limit of protobuf: it parses alone, but not inside a log record."""
    group_begins, group_ends, nesting_max = b"\x7b", b"\x7c", 100  # of an unknown field, number 15
    return request + group_begins * nesting_max + group_ends * nesting_max
