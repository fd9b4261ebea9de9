"""The console's pages in a real browser, in states that need no broker."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from stilltide.pipeline.console.render import PAGES
from stilltide.pipeline.core.status.values import Aged
from tests.support.console.answers import ADDRESSES, ANSWERS
from tests.support.console.browser import HEIGHT_PX, NARROW_PX, WAIT_MS, driven, visiting
from tests.support.console.pictures import BYTES_MAX, FOLDER, draw
from tests.support.console.served import Served, served
from tests.support.console.states import BUSY, CLUSTER_AWAY, STATES, half_hour
from tests.support.hostile import HOSTILE
from tests.support.status.samples import HOLD, NOW_MS, WELL, A, with_a

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAINT_MS_MAX = 10_000.0
"""A browser that shares two processors with other tests takes ten times as long as one alone."""

PAGE_BYTES_MAX = 60_000
CLIENT = "shop:9ebc67f2175d512b8da5"
TOKEN = "d7c1f0a35c8848d2b6f1"  # noqa: S105 - of tests

expect.set_options(timeout=WAIT_MS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests of this file."""
    async with driven() as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def consoles() -> AsyncIterator[dict[str, Served]]:
    """A console for each state."""
    made: dict[str, Served] = {}
    stack = [
        served(
            status,
            answer=ANSWERS[name],
            every_s=60,
            samples=half_hour(BUSY) if name == "busy" else None,
        )
        for name, status in STATES.items()
    ]
    for name, one in zip(STATES, stack, strict=True):
        made[name] = await one.__aenter__()
    yield made
    for one in stack:
        await one.__aexit__(None, None, None)


@pytest_asyncio.fixture(loop_scope="module")
async def console() -> AsyncIterator[Served]:
    """A console whose state the test changes."""
    async with served(WELL) as one:
        yield one


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("state", STATES)
async def test_a_page_of_a_state(
    browser: Browser, consoles: dict[str, Served], state: str, name: str
):
    """Whole, of our own files only, without a fault; no wider than a screen, also a narrow one."""
    of = ADDRESSES.get(name, name)
    async with visiting(browser, consoles[state].url, of=[of]) as visit:
        await expect(visit.page.locator("h1")).to_have_text(PAGES[name].title)
        await expect(visit.page.locator("nav [aria-current]")).to_have_text(PAGES[name].title)
        assert await visit.overflow_px() == 0
        await visit.page.set_viewport_size({"width": NARROW_PX, "height": HEIGHT_PX})
        assert await visit.overflow_px() == 0
        assert (visit.faults, visit.foreign) == ([], [])


@pytest.mark.parametrize(
    ("state", "scheme"), [("busy", "light"), ("busy", "dark"), ("cluster away", "light")]
)
@pytest.mark.parametrize("name", PAGES)
async def test_nothing_keeps_people_from_a_page(
    browser: Browser, consoles: dict[str, Served], name: str, state: str, scheme: str
):
    """Axe finds nothing serious: contrast, names, heads of tables, order of headings."""
    of = ADDRESSES.get(name, name)
    async with visiting(browser, consoles[state].url, of=[of], color_scheme=scheme) as visit:
        assert await visit.grievances() == []


async def test_dark_is_dark(browser: Browser, consoles: dict[str, Served]):
    """The page has the colours that the viewer prefers."""
    seen = []
    for scheme in ("light", "dark"):
        async with visiting(browser, consoles["well"].url, color_scheme=scheme) as visit:
            style = "getComputedStyle(document.body).backgroundColor"
            seen.append(await visit.page.evaluate(style))
    assert [sum(map(int, it[4:-1].split(","))) > 384 for it in seen] == [True, False]


async def test_a_change_comes_to_the_open_page(browser: Browser, console: Served):
    """Text, number of findings and title change by themselves; focus stays where it is."""
    async with visiting(browser, console.url) as visit:
        await visit.page.get_by_role("link", name="Groups").focus()
        await expect(visit.page).to_have_title("Overview - Stilltide")
        console.status = with_a(holds=Aged((HOLD,), NOW_MS))
        await expect(visit.page.get_by_role("status").first).to_contain_text("1 finding needs")
        await expect(visit.page).to_have_title("(1) Overview - Stilltide")
        await expect(visit.page.locator("code.command")).to_have_text(
            "stilltide txn abort 3:302 --cluster a"
        )
        await expect(visit.page.get_by_role("link", name="Groups")).to_be_focused()
        console.status = CLUSTER_AWAY
        await expect(visit.page.get_by_text("away: b")).to_be_visible()
        console.status = WELL
        await expect(visit.page).to_have_title("Overview - Stilltide")
        await expect(visit.page.locator("code.command")).to_have_count(0)
        assert visit.faults == []


async def test_the_last_error_of_a_link_stays_when_the_link_is_back(
    browser: Browser, console: Served
):
    """H9: of a link that does not run with the next step; then with its age on the same page."""
    all_links = WELL.links[A].value
    assert all_links is not None
    (runs,) = all_links
    failed = runs._replace(last_error="orders: 2 partitions", last_error_ms=NOW_MS - 60_000)
    dead = failed._replace(running=False, beat_ms=NOW_MS - 61_000, last_error_hint="drop it")
    console.status = replace(WELL, links={A: Aged((dead,), NOW_MS)})
    async with visiting(browser, f"{console.url}links") as visit:
        row = visit.page.get_by_role("row").filter(has_text="orders: 2 partitions")
        await expect(row).to_contain_text("stopped")
        await expect(row).to_contain_text("1 min ago")
        await expect(row).to_contain_text("(drop it)")
        console.status = replace(WELL, links={A: Aged((failed,), NOW_MS)})
        await expect(row).to_contain_text("runs")
        await expect(row).to_contain_text("1 min ago")
        await expect(row).not_to_contain_text("(drop it)")
        assert await visit.grievances() == []


async def test_what_was_selected_stays_selected(browser: Browser, console: Served):
    """A command can be copied while the page goes on to change."""
    console.status = with_a(holds=Aged((HOLD,), NOW_MS))
    async with visiting(browser, console.url) as visit:
        await visit.page.locator("code.command").click()
        console.status = with_a(holds=Aged((HOLD._replace(behind=41),), NOW_MS))
        await expect(visit.page.get_by_text("41 offsets behind it")).to_be_visible()
        assert await visit.page.evaluate("getSelection().toString()") == (
            "stilltide txn abort 3:302 --cluster a"
        )


async def test_the_way_from_a_topic_to_a_record(browser: Browser, consoles: dict[str, Served]):
    """By links, then by the form, all without a script; the choice is in the address."""
    url = consoles["busy"].url
    async with visiting(browser, url, of=["topic"], java_script_enabled=False) as visit:
        page = visit.page
        await page.get_by_role("link", name="orders").click()
        await expect(page).to_have_url(url + "topic?cluster=a&topic=orders")
        await page.get_by_role("link", name="later").click()
        await page.get_by_role("link", name="57", exact=True).click()
        await expect(page.get_by_role("img", name="Offsets 1,202,310 to 1,204,310")).to_be_visible()
        await page.get_by_label("From offset").fill("1100000")
        await page.get_by_role("button", name="Show").click()
        await expect(page.get_by_label("Partition", exact=True)).to_have_value("57")
        await expect(page.get_by_role("img", name="Offsets 1,100,000 to")).to_be_visible()
        await expect(page.get_by_text("customer-1", exact=True).first).to_be_visible()
        assert visit.faults == []


async def test_a_record_is_shown_in_the_chosen_form(browser: Browser, consoles: dict[str, Served]):
    """From its offset to its page, as JSON on lines, then as a dump; on a narrow screen, too."""
    url = consoles["busy"].url
    async with visiting(browser, url, of=[ADDRESSES["topic"]]) as visit:
        page = visit.page
        await page.get_by_role("link", name="1,204,260", exact=True).click()
        await page.get_by_label("Show bytes as").select_option("hex")
        await page.get_by_role("button", name="Show").click()
        await page.get_by_role("link", name="1,204,262", exact=True).click()
        await expect(page.locator("pre.dump").first).to_contain_text("000000  ")
        await page.set_viewport_size({"width": NARROW_PX, "height": HEIGHT_PX})
        assert await visit.overflow_px() == 0
        await page.get_by_role("link", name="records around").click()
        await expect(page.get_by_label("Show bytes as")).to_have_value("hex")
        assert await visit.grievances() == []
        assert visit.faults == []


async def test_records_change_on_the_open_page(browser: Browser, console: Served):
    """What is typed into the form stays while records come."""
    console.answer = ANSWERS["empty"]
    async with visiting(browser, console.url, of=[ADDRESSES["topic"]]) as visit:
        await expect(visit.page.get_by_text("There is no record.").first).to_be_visible()
        await visit.page.get_by_label("From offset").fill("117")
        console.answer = ANSWERS["busy"]
        await expect(visit.page.get_by_role("img")).to_be_visible()
        await expect(visit.page.get_by_label("From offset")).to_have_value("117")
        assert visit.faults == []


async def test_the_last_half_hour_is_drawn_and_said(browser: Browser, consoles: dict[str, Served]):
    """In words for people who do not see it, and part by part where a pointer rests."""
    name = re.compile(r"Transactions ended, a second, over the last 30 minutes. commits: now \d")
    async with visiting(browser, consoles["busy"].url) as visit:
        chart = visit.page.get_by_role("img", name=name).first
        await chart.locator("rect").nth(5).hover()
        over = chart.locator("rect:hover title")
        await expect(over).to_have_text(re.compile("21:58 to 22:01 UTC: commits .*, aborts "))
        assert await chart.locator("path").first.evaluate("path => path.getBBox().width") > 300
        assert visit.faults == []


async def test_a_console_that_is_gone_is_noticed(browser: Browser):
    """The page says that it is not up to date, and stays."""
    async with served(WELL) as console:
        gone = visiting(browser, console.url)
        visit = await gone.__aenter__()
        await expect(visit.page.get_by_text("nothing needs a person", exact=True)).to_be_visible()
    await expect(visit.page.get_by_text("does not answer")).to_be_visible()
    await expect(visit.page.get_by_text("nothing needs a person", exact=True)).to_be_visible()
    await gone.__aexit__(None, None, None)


async def test_everything_is_readable_without_javascript(
    browser: Browser, consoles: dict[str, Served]
):
    """The page says all of it, and how to see a newer state."""
    url = consoles["busy"].url
    async with visiting(browser, url, of=["transactions"], java_script_enabled=False) as visit:
        await expect(visit.page.get_by_text("orders/0@1203117")).to_be_visible()
        await visit.page.get_by_role("link", name="read again").click()
        await expect(visit.page).to_have_url(url + "transactions")


async def test_the_keyboard_reaches_everything(browser: Browser, consoles: dict[str, Served]):
    """First the way past the navigation, then the navigation."""
    async with visiting(browser, consoles["busy"].url) as visit:
        await visit.page.keyboard.press("Tab")
        await expect(visit.page.get_by_text("Skip to the content")).to_be_focused()
        await visit.page.keyboard.press("Enter")
        await expect(visit.page.locator("main")).to_be_focused()
        await visit.page.keyboard.press("Shift+Tab")
        await expect(visit.page.get_by_role("link", name="Audits")).to_be_focused()
        await visit.page.keyboard.press("Enter")
        await expect(visit.page.locator("h1")).to_have_text("Audits")


async def test_nothing_that_has_not_changed_is_replaced(browser: Browser, console: Served):
    """Also by the first event of the stream: who types or selects text keeps the place."""
    async with visiting(browser, console.url) as visit:
        await visit.page.add_init_script(
            "addEventListener('DOMContentLoaded', () => {"
            "  window.before = [...document.querySelectorAll('nav, nav a, main, h1')];"
            "});"
        )
        await visit.page.reload()
        console.status = CLUSTER_AWAY
        await expect(visit.page.get_by_text("away: b")).to_be_visible()
        replaced = "before.filter(element => !element.isConnected).map(element => element.nodeName)"
        assert await visit.page.evaluate("before.length") > len(PAGES) / 2
        assert await visit.page.evaluate(replaced) == []


@pytest.mark.parametrize("name", PAGES)
async def test_a_narrow_screen_shows_every_column(
    browser: Browser, consoles: dict[str, Served], name: str
):
    """Rows are cards with the names of their columns: no table is wider than the screen."""
    narrow = {"width": NARROW_PX, "height": HEIGHT_PX}
    of = ADDRESSES.get(name, name)
    async with visiting(browser, consoles["busy"].url, of=[of], viewport=narrow) as visit:
        cut = "all => all.filter(it => it.scrollWidth > it.clientWidth).length"
        assert await visit.page.locator(".wide").evaluate_all(cut) == 0
        assert await visit.grievances() == []


async def test_a_long_client_id_is_shortened_and_copied_whole(
    browser: Browser, consoles: dict[str, Served]
):
    """The whole of it is on hover, too."""
    async with visiting(browser, consoles["busy"].url, of=["transactions"]) as visit:
        client = visit.page.locator(".id").first
        assert await client.evaluate("it => it.scrollWidth > it.clientWidth")
        await client.evaluate("it => getSelection().selectAllChildren(it)")
        selected = await visit.page.evaluate("getSelection().toString()")
        assert selected.strip() == await client.get_attribute("title") == CLIENT


async def test_a_hostile_name_is_text(browser: Browser, consoles: dict[str, Served]):
    """A topic named like a script is shown under its name, and runs nothing."""
    for name in ("groups", "topic", ADDRESSES["topic"], "native"):
        async with visiting(browser, consoles["hostile names"].url, of=[name]) as visit:
            shown = visit.page.get_by_text(HOSTILE["script"]).locator("visible=true")
            await expect(shown.first).to_be_visible()
            assert await visit.page.locator("main script, main img").count() == 0
            assert visit.faults == []


async def test_a_busy_page_is_there_within_a_second(browser: Browser, consoles: dict[str, Served]):
    """10 000 open and 100 000 aborted transactions: first paint, and weight of all that is sent."""
    async with visiting(browser, consoles["busy"].url, of=["transactions"]) as visit:
        paints = []
        for _ in range(3):
            await visit.page.reload()
            paints.append(await visit.first_paint_ms())
        sent = await visit.page.evaluate(
            "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType"
            "('resource')].filter(it => !it.name.includes('/events/'))"
            ".reduce((sum, it) => sum + it.encodedBodySize, 0)"
        )
        assert min(paints) <= PAINT_MS_MAX
        assert 0 < sent <= PAGE_BYTES_MAX


async def test_a_viewer_types_the_token(browser: Browser):
    """The form asks until the token is right; then the pages are open."""
    async with served(WELL, token=TOKEN) as console, visiting(browser, console.url) as visit:
        assert await visit.grievances() == []
        field = visit.page.get_by_label("Token of this console")
        await field.fill("not the token at all")
        await visit.page.get_by_role("button").click()
        await expect(visit.page.get_by_role("alert")).to_have_text("This is not the token.")
        await field.fill(TOKEN)
        await field.press("Enter")
        await expect(visit.page.locator("h1")).to_have_text("Overview")
        await visit.page.get_by_role("link", name="Links").click()
        await expect(visit.page.locator("h1")).to_have_text("Links")


async def test_pictures_of_the_documentation_are_small(browser: Browser, tmp_path: Path):
    """Those that `make screenshots` writes, and those that are there."""
    for path in await draw(browser, tmp_path):
        assert 10_000 < path.stat().st_size < BYTES_MAX
        assert (FOLDER / path.name).stat().st_size < BYTES_MAX
