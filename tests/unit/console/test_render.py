"""Pages of the console as HTML, without a browser."""

import re
import zlib
from dataclasses import replace

import pytest

from stilltide.pipeline.console.feed import Shot
from stilltide.pipeline.console.render import (
    HERE,
    PAGES,
    RENDERED_BYTES_MAX,
    PageLook,
    Rendered,
    Renderer,
)
from stilltide.pipeline.console.views import ROWS_EACH_MAX, ROWS_MAX
from stilltide.pipeline.core.status.values import (
    LISTED_MAX,
    Aged,
    OldestTransaction,
    TransactionsStatus,
)
from tests.support.console.answers import ADDRESSES, ANSWERS
from tests.support.console.pages import Seen, look, shown, text
from tests.support.console.states import BUSY, EMPTY, HOSTILE_NAMES, OPEN_COUNT, STATES, half_hour
from tests.support.hostile import HOSTILE, is_harmless
from tests.support.status.samples import HOLD, NATIVE_HOLD, NOW_MS, WELL, with_a

PAGE_BYTES_MAX = 60_000
TAGS = frozenset(
    tag
    for name in ("page.html", "body.html")
    for tag in re.findall(r"<([a-z]\w*)", (HERE / "templates" / name).read_text())
)
"""What our templates consist of."""


@pytest.mark.parametrize("name", [*PAGES, *ADDRESSES.values()])
@pytest.mark.parametrize("state", STATES)
def test_a_page_has_our_tags_only_and_printable_text(name: str, state: str):
    """Whatever strangers name their topics: nothing runs, and nothing is loaded from elsewhere."""
    page = shown(name, STATES[state], ANSWERS[state])
    seen = Seen(page)
    assert seen.tags <= TAGS
    assert not {it for it in seen.attributes if it.startswith("on") or it == "style"}
    assert is_harmless(page)
    loaded = re.findall(r'(?:src|href)="([^"]*)"', page)
    elsewhere = [it for it in loaded if it.startswith("/") or ":" in it.partition("?")[0]]
    assert elsewhere == [], "a proxy serves the console below a path of its own"


@pytest.mark.parametrize("name", [*PAGES, *ADDRESSES.values()])
def test_a_page_and_its_files_are_small(name: str):
    """A page of 10 000 open transactions, with style sheet and script, is 60 kB compressed."""
    files = sum(len(zlib.compress(it.read_bytes())) for it in (HERE / "static").iterdir())
    page = shown(name, BUSY, ANSWERS["busy"], half_hour(BUSY).kept)
    assert len(zlib.compress(page.encode())) + files < PAGE_BYTES_MAX


def test_what_is_rendered_of_one_state_takes_bounded_memory():
    """However many look at something else each; what two look at is rendered once."""
    kept, made = Rendered[bytes](), list[str]()
    shot = Shot(1, WELL, ())

    def render(one: PageLook, _shot: Shot) -> bytes:
        made.append(one.query["topic"])
        return bytes(RENDERED_BYTES_MAX // 10)

    def seen(topic: str) -> int:
        return len(kept.get(PageLook("topic", {"topic": topic}, {}), shot, render))

    assert seen("a") == seen("a")
    assert made == ["a"]
    for number in range(30):
        seen(str(number))
        assert sum(map(len, kept._kept.values())) <= RENDERED_BYTES_MAX * 1.1
    kept.get(PageLook("topic", {"topic": "29"}, {}), replace(shot, number=2), render)
    assert made[-2:] == ["29", "29"]


def test_the_overview_says_what_helps():
    """Findings come first, each with its command; other pages say how many there are."""
    status = with_a(holds=Aged((HOLD, NATIVE_HOLD), NOW_MS))
    page = shown("overview", status)
    assert page.index("stilltide txn abort 3:302 --cluster a") < page.index(">Clusters<")
    assert "2 findings need a person" in text("overview", status)
    assert "2 findings need a person" in text("audits", status)
    assert "<title>(2) Overview - Stilltide</title>" in page
    assert "nothing needs a person" in text("overview", WELL)
    assert re.findall(r"a needs a person a:9092|b well b:9092", text("overview", status)) == [
        "a needs a person a:9092",
        "b well b:9092",
    ]


def test_a_finding_leads_to_the_pages_of_what_it_names():
    """A coordinated transaction has a page, a native one only the place where readers wait."""
    page = shown("overview", with_a(holds=Aged((HOLD, NATIVE_HOLD), NOW_MS)))
    coordinated, native = page.split("stilltide txn abort 3:302")[0], page.split("native fence")[0]
    assert 'href="transactions?cluster=a&amp;txn=3%3A302"' in coordinated
    assert 'href="topic?cluster=a&amp;topic=orders&amp;partition=0&amp;offset=117"' in coordinated
    assert native.count('href="transactions?cluster=a&amp;txn=') == 1


def test_every_hold_has_the_command_that_ends_its_transaction():
    """Coordinated, native and hanging ones have different ends."""
    hanging = NATIVE_HOLD._replace(hanging=True)
    said = text("transactions", with_a(holds=Aged((HOLD, NATIVE_HOLD, hanging), NOW_MS)))
    assert "orders/0@117" in said
    for command in (
        "stilltide txn abort 3:302 --cluster a",
        "stilltide native fence payments --cluster a",
        "stilltide native abort orders 0 117 --cluster a",
    ):
        assert command in said


def test_long_lists_are_cut_and_counted():
    """A page shows the oldest transactions, and says how many more there are."""
    said = text("transactions", BUSY)
    assert said.count("shop:9ebc67f2175d512b8da5") <= 3 * ROWS_EACH_MAX + 3 * 5
    assert f"{OPEN_COUNT + 35 - ROWS_EACH_MAX:,} more; choose one cluster" in said
    chosen = text("transactions?cluster=b", BUSY)
    assert f"{OPEN_COUNT + 35 - ROWS_MAX:,} more; status.json" in chosen


def test_what_was_read_before_keeps_its_age_and_says_why():
    """A cluster that is away shows what it was, how old that is, and what helps."""
    said = text("transactions", STATES["cluster away"])
    assert "read 3 min ago" in said
    assert "no answer within 2 s" in said
    assert "check that the broker runs" in said
    assert "away: b" in text("groups", STATES["cluster away"])


def test_no_cluster_was_ever_reached():
    """The overview names the addresses that were tried."""
    said = text("overview", STATES["all away"])
    assert "10.1.2.3:9092" in said
    assert "10.1.2.4:9092" in said
    assert said.count("never") >= 14
    assert "Every transaction has ended" not in text("transactions", STATES["all away"])


def test_nothing_read_does_not_look_like_nothing_there():
    """Parts that nobody has read yet say so."""
    for name in ("transactions", "groups", "links", "snapshots", "topic", "logs", "native"):
        assert "Not read yet." in text(name, STATES["unread"]), name
        assert "Not read yet." not in text(name, EMPTY, ANSWERS["empty"]), name


def test_what_a_page_says_of_itself_is_for_people():
    """No name of a class, no marks of code: commands in sentences are drawn as code."""
    for state in ("empty", "busy"):
        for name in [*PAGES, *ADDRESSES.values()]:
            page = shown(name, STATES[state], ANSWERS[state])
            headings = re.findall(r'<h2 id="s\d+">([^<]*)<', page)
            assert not [it for it in headings if re.search(r"[a-z][A-Z]", it)], name
            assert not re.search(r'<p class="(?:about|empty|problem)">[^\n]*`', page), name
    empty = shown("groups", EMPTY, ANSWERS["empty"])
    assert empty.count("<code>stilltide group enable TOPIC GROUP</code>") == 1


def test_an_aborted_transaction_says_by_whom():
    """Its client, its time-out or an operator, as far as the coordinator remembers."""
    said = text("transactions", BUSY, ANSWERS["busy"])
    for words in ("timed out", "aborted by its client", "aborted by an operator"):
        assert words in said
    unknown = transactions_of({})
    assert "timed out" not in unknown
    assert "by its client" not in unknown


def transactions_of(aborted_by: dict[str, str]) -> str:
    """The page of a cluster whose coordinators remember these causes."""
    clusters = tuple(
        replace(
            one, transactions=one.transactions.of(lambda it: it._replace(aborted_by=aborted_by))
        )
        for one in BUSY.clusters
    )
    return text("transactions", replace(BUSY, clusters=clusters), ANSWERS["busy"])


def test_transactions_are_searched_and_ordered_by_the_address():
    """By text, state and cluster, with the way back; and what was searched is said."""
    everything = text("transactions", BUSY, ANSWERS["busy"])
    assert "all transactions" not in everything
    by_id = text("transactions?text=1:7005", BUSY, ANSWERS["busy"])
    assert "1:7005" in by_id
    assert "1:7009" not in by_id
    assert f"Searched are the oldest {LISTED_MAX} of {OPEN_COUNT + 35:,}." in by_id
    assert "No transaction passes the filter." in by_id
    assert "all transactions" in by_id
    aborted = text("transactions?state=aborted&cluster=a", BUSY, ANSWERS["busy"])
    assert "that ended last" in aborted
    assert "2:6898 aborted" in aborted
    assert "0:6900 committed" not in aborted
    for words in ("Readers that wait", "that have not ended", "Transactions on b"):
        assert words not in aborted
    committing = text("transactions?state=committing&text=SHOP", BUSY, ANSWERS["busy"])
    assert "3:7003" in committing
    assert "0:7000" not in committing
    assert "that ended last" not in committing
    newest = text("transactions?sort=newest+first&state=open", BUSY, ANSWERS["busy"])
    assert newest.index("1:7097") < newest.index("0:7092")
    assert "0:7000" not in newest, "only 50 rows are shown"
    most = text("transactions?sort=most+partitions&state=open", BUSY, ANSWERS["busy"])
    assert most.index("2:7006") < most.index("1:7005")


def test_a_transaction_has_a_page_of_its_life():
    """Its id leads there; the page has its steps in time, its partitions, and the way back."""
    page = shown("transactions", BUSY, ANSWERS["busy"])
    assert 'href="transactions?cluster=a&amp;txn=0%3A7000"' in page
    aborting = text("transactions?cluster=a&txn=0:7004", BUSY, ANSWERS["busy"])
    for words in ("opened 2023-11-14 22:11:48", "decided not kept - aborting by an operator"):
        assert words in aborting
    assert "all transactions" in aborting
    assert "Transactions on a" not in aborting
    waited_for = shown("transactions?cluster=a&txn=1:7001", BUSY, ANSWERS["busy"])
    assert 'href="topic?cluster=a&amp;topic=orders&amp;partition=1"' in waited_for
    ended = text("transactions?cluster=a&txn=2:6898", BUSY, ANSWERS["busy"])
    assert "ended 2023-11-14 22:13:18 1 s aborted" in ended
    unknown = text("transactions?cluster=a&txn=0:1", BUSY, ANSWERS["busy"])
    assert "stilltide txn describe 0:1 asks its coordinator" in unknown
    assert "No transaction has this id" in text("transactions?txn=x", BUSY, ANSWERS["busy"])


@pytest.mark.parametrize("name", [*PAGES, *ADDRESSES.values(), "groups?cluster=a&group=billing"])
def test_every_id_leads_to_its_page(name: str):
    """Transactions, partitions, clients, topics, groups and links, wherever a table shows them."""
    page = shown(name, BUSY, ANSWERS["busy"])
    texts = re.findall(r"<span[^>]*>([^<]*)</span>", page)
    ids = re.compile(r"\d+:\d+|[a-z.-]+/\d+(?:@\d+)?|shop:[0-9a-f]+|orders|billing")
    assert [text for text in texts if ids.fullmatch(text)] == []
    addresses = re.findall(r'<a href="([^"?]*)', page)
    assert {it.removeprefix("./") for it in addresses} <= {*PAGES, "", "status.json"}


def test_a_link_has_a_page():
    """To which its name leads, with the way back."""
    assert 'href="links?cluster=a&amp;link=b"' in shown("links", BUSY)
    assert "115 more; the page of a link has its partitions" in text("links", BUSY)
    said = text("links?cluster=a&link=b", BUSY)
    assert "all links" in said
    assert "Links into a" in said
    assert "Links into b" not in said
    assert "b orders/11" in said
    assert "c orders/" not in said


def test_a_transaction_that_ended_says_how():
    """With the records that it promised, and a count of each outcome."""
    said = text("transactions", BUSY, ANSWERS["busy"])
    assert "Of the last 50: 12 aborted, 26 committed, 12 mixed." in said
    assert "0:6900 committed now 0" in said


def test_l7_a_prepared_transaction_has_the_command_that_decides():
    """L7: with its age and decider; an ended one says who has decided, and why."""
    waiting = OldestTransaction(
        "0:7", "PREPARED", NOW_MS - 90_000, 9000, "", 1, "", NOW_MS - 65_000, "orders-db"
    )
    reasons = {"0:6900": "me@here: the order is stored"}
    listed = TransactionsStatus(0, 0, 0, waiting, (), (waiting,), {}, 1, reasons)
    state = with_a(transactions=Aged(listed, NOW_MS))
    page = text("transactions", state, ANSWERS["busy"])
    assert "prepared for 1 min, decider orders-db" in page
    assert "stilltide txn commit|abort --prepared 0:7 --reason TEXT --cluster a" in page
    assert "me@here: the order is stored" in page


def test_the_lag_of_a_group_has_an_age():
    """Counted on its own, and told as a part where counting ended."""
    said = text("groups", BUSY, ANSWERS["busy"])
    assert "billing orders a 6 100 at least 1,204 now" in said
    assert "billing orders b 6 100 1,204 now" in said


def test_a_log_shows_fill_and_waits_of_entries_that_were_buffered():
    """Entries that were not buffered are told, and not part of the fill."""
    said = text("logs", BUSY, ANSWERS["busy"])
    assert "12.6 of at most 512 848 B 0.16 ms longest 4.10 ms, limit 1.00 ms" in said
    assert "idle 88,000, unbatched 2,000, records 412" in said
    assert "stilltide.txn-log/3 no answer" in said


def test_a_group_shows_what_a_fail_over_reads_again():
    """One row for each group, one column for each cluster."""
    page = shown("groups", BUSY)
    heads = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', page)
    assert heads[:5] == ["group", "topic", "a", "b", "c"]
    assert "reads again 15, others 60" in text("groups", BUSY)


def test_hostile_names_are_shown_as_text():
    """The names are on the pages, escaped."""
    page = shown("groups", HOSTILE_NAMES)
    assert HOSTILE["script"] not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert r"a\x1b[2J" in page


def test_one_state_is_rendered_once():
    """Viewers share what was rendered; a new state is rendered again."""
    renderer = Renderer()
    overview = look("overview", WELL)
    first = renderer.body(overview, Shot(1, WELL, ()))
    assert renderer.body(overview, Shot(1, EMPTY, ())) is first
    later = replace(WELL, now_ms=NOW_MS + 1000)
    assert renderer.body(overview, Shot(2, later, ())) != first


def test_snapshots_are_searched_by_topic_and_cluster():
    """Those of one cluster are shown up to the usual number of rows; what does not fit is said."""
    assert "40 more; type a part of the topic, or choose one cluster" in text("snapshots", BUSY)
    said = text("snapshots?text=ship&cluster=b", BUSY)
    assert said.count("shipments/") == 12
    assert "orders/" not in said
    assert "Snapshots on a" not in said
    assert said.count("No topic with such a name has one.") == 1
    assert 'href="snapshots">all snapshots' in shown("snapshots?text=zzz", BUSY)


def test_native_ids_with_a_transaction_come_first_and_a_chosen_topic_before_all():
    """What is complete is seldom what somebody looks for."""
    said = text("native", BUSY, ANSWERS["busy"])
    assert "invoicer-0 4701 ongoing invoicer-3 4704 ongoing" in said
    chosen = text("native?cluster=a&topic=orders", BUSY, ANSWERS["busy"])
    assert chosen.index("Producers of orders on a") < chosen.index("Open on a")
