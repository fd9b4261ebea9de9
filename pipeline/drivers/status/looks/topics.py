"""Reads topics, the ends of their partitions, and records with what readers do with them."""

import asyncio
import contextlib
import gc
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from stilltide.connectors.errors import FatalError, NotAuthorizedError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector, TopicAdmin
from stilltide.pipeline.core.status.asks import (
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    PARTITIONS_MAX,
    RECORDS_MAX,
    SPANS_MAX,
    TOPICS_MAX,
    ConfigsAsk,
    DescribedConfigs,
    JudgedRecord,
    JudgedRun,
    ListedTopic,
    NamedTopics,
    PartitionEnds,
    Partitions,
    PartitionsAsk,
    Records,
    RecordsAsk,
    TopicsAsk,
    TxnSpan,
)
from stilltide.pipeline.drivers.read_committed.browse import BrowsedWindow, Judged, RecordBrowser
from stilltide.schemas.topics import is_system_topic
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition, TxnId

READING_MAX = 1
"""Windows that are read at the same time; each may hold `WINDOW_BYTES` of records. If there were
more, the browsers of one topic would have to be told apart."""

WAITING_MAX = 2
"""Browsers that wait; a further one takes the place of the one that has waited longest."""

BrowserKey = tuple[ClusterName, str]
"""A cluster, and a topic of it."""


class RecordBrowsers:
    """Lends browsers; `close` must be called at the end.

    Args:
        idle_s: seconds after which a browser that waits is closed by `sweep`.
    """

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._room = asyncio.Semaphore(READING_MAX)
        self._closing: set[asyncio.Task[None]] = set()
        self._waiting: OrderedDict[BrowserKey, tuple[RecordBrowser, float]] = OrderedDict()

    def __len__(self) -> int:
        """How many browsers wait."""
        return len(self._waiting)

    @asynccontextmanager
    async def browser(
        self, key: BrowserKey, connector: Connector, admin: LogAdmin
    ) -> AsyncIterator[RecordBrowser]:
        """A browser of the topic for the length of the block, in turn."""
        async with self._room:
            if self._closing:  # their clients take memory until they are closed
                await asyncio.wait(self._closing)
            kept = self._waiting.pop(key, None)
            browser = RecordBrowser(connector, admin, key[1]) if kept is None else kept[0]
            try:
                yield browser
            except BaseException:  # what its readers have begun is not known
                self._end(browser)
                raise
            # Readers and what they have read refer to each other. The collector counts objects, and
            # would let megabytes of records lie that are few objects.
            gc.collect()
            self._waiting[key] = browser, asyncio.get_running_loop().time()
            while len(self._waiting) > WAITING_MAX:
                self._end(self._waiting.popitem(last=False)[1][0])

    def sweep(self) -> None:
        """Closes the browsers that have waited for too long."""
        until_s = asyncio.get_running_loop().time() - self._idle_s
        for key, (browser, since_s) in list(self._waiting.items()):
            if since_s < until_s:
                del self._waiting[key]
                self._end(browser)

    async def close(self) -> None:
        """Closes all browsers; nobody may use one any more."""
        while self._waiting:
            self._end(self._waiting.popitem()[1][0])
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _end(self, browser: RecordBrowser) -> None:
        """Closes a browser whatever happens to the caller, who may be cancelled."""
        task = asyncio.create_task(browser.close(), name="close-browser")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


ENDS_REST_S = 1.0
TOPICS_REST_S = 5.0


RATED_PARTITIONS_MAX = 2000
"""Partitions whose ends are asked for with a list of topics; of further topics no rate is known."""

_POLICY = "cleanup.policy"


class TopicsLook:
    """Lists topics; a rate is that between two reads. See `AskedLook`.

    Args:
        admin: admin client of the cluster; the caller closes it.
        topic_admin: admin of topics of the same cluster; the caller closes it.
        ask: which topics.
    """

    def __init__(self, admin: LogAdmin, topic_admin: TopicAdmin, ask: TopicsAsk) -> None:
        self.rest_s = TOPICS_REST_S
        self._admin = admin
        self._topic_admin = topic_admin
        self._ask = ask
        self._ends: dict[TopicPartition, EndOffset] = {}
        self._read_s = 0.0

    async def read(self) -> NamedTopics:
        """The topics now; what the user may not know of them is left out, and said."""
        ask = self._ask
        matching = [name for name in await self._admin.list_topics() if ask.text in name]
        shown = [name for name in matching if ask.with_system or not is_system_topic(name)]
        described = await self._admin.describe_topics(shown[ask.first : ask.first + TOPICS_MAX])
        problems: list[str] = []
        configs: Mapping[str, Mapping[str, str | None]] = {}
        overrides: Mapping[str, Mapping[str, str]] = {}
        sizes: Mapping[TopicPartition, int] = {}
        try:
            configs = await self._admin.topic_configs(list(described))
            overrides = await self._admin.topic_overrides(list(described))
        except NotAuthorizedError as error:
            problems.append(f"configs: {error.primary}")
        try:
            sizes = await self._topic_admin.sizes(list(described))
        except (NotAuthorizedError, FatalError) as error:
            problems.append(f"sizes: {error.primary}")
        starts, rates = await self._written(described)
        sizes_by_topic = _sums(sizes)
        return NamedTopics(
            tuple(
                ListedTopic(
                    name,
                    topic.partition_count,
                    topic.replica_count,
                    configs.get(name, {}).get(_POLICY),
                    len(overrides[name]) if name in overrides else None,
                    sizes_by_topic.get(name),
                    starts.get(name),
                    rates.get(name),
                )
                for name, topic in sorted(described.items())
            ),
            len(shown),
            len(matching) - len(shown),
            tuple(problems),
        )

    async def close(self) -> None:
        """Nothing is open."""

    async def _written(
        self, described: Mapping[str, TopicDescription]
    ) -> tuple[dict[str, int], dict[str, float]]:
        """Offsets of each topic, and offsets a second since the last read."""
        asked: list[TopicPartition] = []
        for name, topic in sorted(described.items()):
            if len(asked) + topic.partition_count <= RATED_PARTITIONS_MAX:
                asked += [TopicPartition(name, number) for number in range(topic.partition_count)]
        starts = await self._admin.start_offsets(asked)
        ends = await self._admin.end_offsets(asked)
        now_s, before_s = asyncio.get_running_loop().time(), self._read_s
        before, self._ends, self._read_s = self._ends, ends, now_s
        offsets = {data: end - starts[data] for data, end in ends.items() if data in starts}
        grown = {data: max(0, end - before[data]) for data, end in ends.items() if data in before}
        return _sums(offsets), {
            name: total / (now_s - before_s) for name, total in _sums(grown).items()
        }


def _sums(by_partition: Mapping[TopicPartition, int]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for data, value in by_partition.items():
        sums[data.topic] = sums.get(data.topic, 0) + value
    return sums


async def configs_of(admin: LogAdmin, ask: ConfigsAsk) -> DescribedConfigs:
    """The configs of a topic.

    Raises:
        FatalError: the topic does not exist.
        NotAuthorizedError: the user lacks DescribeConfigs on it.
    """
    configs = await admin.topic_configs([ask.topic])
    if ask.topic not in configs:
        raise FatalError("the topic does not exist", hint="correct the name", topic=ask.topic)
    overrides = await admin.topic_overrides([ask.topic])
    return DescribedConfigs(configs[ask.topic], frozenset(overrides.get(ask.topic, {})))


async def partition_count(admin: LogAdmin, topic: str) -> int:
    """How many partitions a topic has.

    Raises:
        FatalError: the topic does not exist.
    """
    topic_now = (await admin.describe_topics([topic])).get(topic)
    if topic_now is None:
        raise FatalError("the topic does not exist", hint="correct the name", topic=topic)
    return topic_now.partition_count


def partitions_from(topic: str, first: int, count: int) -> list[TopicPartition]:
    """The first `PARTITIONS_MAX` partitions from a number on."""
    end = min(count, first + PARTITIONS_MAX)
    return [TopicPartition(topic, number) for number in range(first, end)]


async def partition_ends(
    admin: LogAdmin, topic_admin: TopicAdmin, ask: PartitionsAsk
) -> Partitions:
    """The ends of a topic's partitions, from a number on; sizes, if the user may know them.

    Raises:
        FatalError: the topic does not exist.
    """
    count = await partition_count(admin, ask.topic)
    wanted = partitions_from(ask.topic, ask.first, count)
    starts = await admin.start_offsets(wanted)
    stable = await admin.end_offsets(wanted, committed=True)
    ends = await admin.end_offsets(wanted)
    sizes: Mapping[TopicPartition, int] = {}
    with contextlib.suppress(NotAuthorizedError, FatalError):
        sizes = await topic_admin.sizes([ask.topic])
    return Partitions(
        count,
        tuple(
            PartitionEnds(data, starts[data], stable[data], ends[data])
            for data in wanted
            if data in starts and data in stable and data in ends
        ),
        {data: sizes[data] for data in wanted if data in sizes},
    )


class RecordsLook:
    """Looks at the records of a partition; see `AskedLook`.

    Args:
        browsers: lends a browser of the topic.
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
        ask: which records.
    """

    def __init__(
        self, browsers: RecordBrowsers, connector: Connector, admin: LogAdmin, ask: RecordsAsk
    ) -> None:
        self.rest_s = ENDS_REST_S
        self._ask = ask
        self._admin = admin
        self._browser = partial(browsers.browser, (ask.cluster, ask.data.topic), connector, admin)

    async def read(self) -> Records:
        """The window; raises as `RecordBrowser.window`."""
        data, start, only = self._ask.data, self._ask.start, self._ask.only
        if start is None and self._ask.since_ms is not None:
            start = (await self._admin.start_offsets([data], since_ms=self._ask.since_ms)).get(data)
        async with self._browser() as browser:
            window = await browser.window(data.partition, start, only=only)
            is_tail = start is None or window.start != start
            return records_of(data, window, is_tail=is_tail, with_headers=only)

    async def close(self) -> None:
        """Nothing is open but browsers, which others use, too."""


def records_of(
    data: TopicPartition, window: BrowsedWindow, *, is_tail: bool, with_headers: bool = False
) -> Records:
    """A window as a value; of its tail the last records are shown, else the first ones."""
    shown = window.judged[-RECORDS_MAX:] if is_tail else window.judged[:RECORDS_MAX]
    spans = _spans(window.judged)
    return Records(
        PartitionEnds(data, window.log_start, window.last_stable, window.high_watermark),
        window.start,
        window.end,
        window.max_read_position,
        tuple(_runs(window.judged)),
        Counter(it.verdict for it in window.judged),
        tuple(spans[:SPANS_MAX]),
        len(spans),
        tuple(_record(judged, with_headers=with_headers) for judged in shown),
    )


def _runs(judged: Iterable[Judged]) -> list[JudgedRun]:
    """Neighbours of one verdict joined; a gap between offsets ends a run."""
    runs: list[JudgedRun] = []
    for judged_record in judged:
        offset = judged_record.record.offset
        end = EndOffset(offset + 1)
        if runs and runs[-1].end == offset and runs[-1].verdict is judged_record.verdict:
            runs[-1] = runs[-1]._replace(end=end)
        else:
            runs.append(JudgedRun(offset, end, judged_record.verdict))
    return runs


def _spans(judged: Sequence[Judged]) -> list[TxnSpan]:
    """The coordinated transactions, by their first record."""
    spans: dict[bytes, TxnSpan] = {}
    for judged_record in judged:
        if not judged_record.txn:
            continue
        offset = judged_record.record.offset
        known = spans.get(judged_record.txn)
        if known is None:
            spans[judged_record.txn] = TxnSpan(
                _shown_txn(judged_record.txn), offset, offset, 1, judged_record.verdict
            )
        else:
            records = known.records + 1
            spans[judged_record.txn] = known._replace(
                last=offset, records=records, verdict=judged_record.verdict
            )
    return list(spans.values())


def _record(judged: Judged, *, with_headers: bool) -> JudgedRecord:
    record = judged.record
    headers = (record.headers or ())[:HEADERS_MAX] if with_headers else ()
    return JudgedRecord(
        record.offset,
        record.timestamp_ms,
        record.key,
        record.value,
        record.key_bytes,
        record.value_bytes,
        len(record.headers or ()),
        _shown_txn(judged.txn) if judged.txn else "",
        judged.verdict,
        judged.native,
        tuple(
            (name, value and value[:HEADER_BYTES_MAX], len(value or b"")) for name, value in headers
        ),
    )


def _shown_txn(txn: bytes) -> str:
    return str(TxnId.from_bytes(txn))
