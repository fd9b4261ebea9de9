"""The page of a real audit in a real browser: light, dark, narrow, and on paper."""

import asyncio
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stilltide.pipeline.jobs.audits.files import PAGE, write_report
from stilltide.pipeline.jobs.audits.pages.charts import plots
from stilltide.pipeline.jobs.audits.plan import AuditPlan
from stilltide.pipeline.jobs.audits.report import AuditReport, FindingKind
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.browser import Browser, chromium
from tests.support.native.hanging import write_hanging
from tests.support.native.topics import INDEX_PARTITIONS
from tests.support.native.writer import NativeWriter
from tests.support.spark.topics import HandWriter, create_topics

NARROW_PX = 360


def write(bootstrap: str, topic: str) -> None:
    """Transactions of both kinds, every few aborted; an undecided one, and one that hangs."""
    create_topics(bootstrap, {topic: 3})
    coordinated, native = HandWriter(bootstrap, topic), NativeWriter(bootstrap, topic)
    for number in range(10):
        for partition in range(3):
            txn = TxnId(partition, number)
            written = coordinated.of_txn(txn, partition, 10 + number % 3)
            if (number + 2 * partition) % 4:
                coordinated.commit(txn, partition, written)
            else:
                coordinated.abort(txn, partition)
            native.transaction(partition, 4 + number % 5, commit=(number + partition) % 4 > 0)
    coordinated.of_txn(TxnId(3, 99), 2, 5)
    asyncio.run(write_hanging(bootstrap, TopicPartition(topic, 0), 5))


@pytest.fixture(scope="module")
def report(bootstrap: str, spark: SparkSession) -> AuditReport:
    """What an audit of such a topic says."""
    del spark
    write(bootstrap, "orders-of-a-page")
    plan = AuditPlan(["orders-of-a-page"], index_partitions=INDEX_PARTITIONS)
    return run_audit(bootstrap, plan)


@pytest.fixture(scope="module")
def page(report: AuditReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of that audit."""
    folder = tmp_path_factory.mktemp("report")
    write_report(report, folder)
    return folder / PAGE


@pytest.fixture
async def browser(tmp_path: Path) -> Browser:
    """Chromium, which the fixture installs where it may."""
    return Browser(await chromium(), tmp_path)


def test_coordinated_and_native_shares_are_counted(report: AuditReport):
    """The counts along the offsets are those of the whole partitions, for both kinds."""
    for one in report.partitions:
        assert sum(it.aborted for it in one.windows) == one.records.hidden > 0
        assert sum(it.visible for it in one.windows) == one.records.visible
        assert len(one.windows) > 20
        assert one.batches is not None
        assert sum(it.aborted for it in one.batches.windows) == one.batches.aborted > 0
    assert len(plots(report).shown) == 5
    assert {FindingKind.UNDECIDED, FindingKind.HANGING} <= set(report.finding_counts)


@pytest.mark.parametrize(
    ("theme", "width"), [("light", 1100), ("dark", 1100), ("light", 500), ("dark", 500)]
)
async def test_the_page_is_drawn(
    browser: Browser, page: Path, tmp_path: Path, theme: str, width: int
):
    """A picture with text and plots on a light or a dark ground."""
    png = tmp_path / "page.png"
    await browser.screenshot(page, png, width=width, height=1600, dark=theme == "dark")
    seen = await browser.pixels(png)
    assert seen["size"] == [width, 1600]
    assert seen["colours"] > 100
    assert 0.4 < seen["background_share"] < 0.97
    dark = max(seen["background"]) < 48
    assert dark if theme == "dark" else min(seen["background"]) > 240


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW_PX, 1100])
async def test_the_page_fits_and_can_be_read(
    browser: Browser, page: Path, report: AuditReport, width: int, theme: str
):
    """Nothing sticks out, text keeps its size, no shape is without colour or width."""
    seen = await browser.measure(page, width=width, dark=theme == "dark")
    assert seen["title"] == f"Audit of {report.topics[0]}"
    assert seen["width"] == width
    assert seen["needed"] <= width
    assert seen["font_px"] >= 12
    assert seen["flat"] == 0
    assert contrast(seen["ink"], seen["background"]) > 7
    grounds = [seen["background"]]
    fills = [it for it in seen["fills"] if contrast(it, seen["background"]) > 2.5]
    assert len(fills) >= 3, f"shapes of {seen['fills']} on {grounds}"
    assert seen["head_px"] < 700, "what was proved is not on the first screen"


async def test_the_page_keeps_its_own_policy(browser: Browser, page: Path, tmp_path: Path):
    """The console is silent; a page with a script and a picture of elsewhere is not."""
    assert await browser.console(page) == []
    said = await browser.console(spoilt(page, tmp_path / "worse.html"))
    assert len(said) >= 2
    assert all("Content Security Policy" in line for line in said)


async def test_the_page_prints(browser: Browser, page: Path, tmp_path: Path):
    """On white paper in a few pages, also for those who see it dark."""
    pdf = tmp_path / "page.pdf"
    await browser.print(page, pdf)
    assert 1 <= pages_of(pdf) <= 10


def pages_of(pdf: Path) -> int:
    """How many pages the document has."""
    return len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))


def spoilt(page: Path, copy: Path) -> Path:
    """A copy of the page that breaks the page's policy twice."""
    more = '<script>alert(1)</script><img src="https://127.0.0.1:1/x.png">'
    text = page.read_text(encoding="utf-8")
    copy.write_text(text.replace("</body>", more + "</body>"), encoding="utf-8")
    return copy


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG 2: 1 for equal ones, 21 for black on white."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    """Of a colour such as `rgb(1, 2, 3)`."""
    parts = (int(it) / 255 for it in colour.removeprefix("rgb(").removesuffix(")").split(", "))
    linear = [it / 12.92 if it <= 0.03928 else ((it + 0.055) / 1.055) ** 2.4 for it in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
