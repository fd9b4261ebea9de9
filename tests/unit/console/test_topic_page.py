"""The pages of a topic and of native transactions, without a browser."""

import pytest

from stilltide.pipeline.console.pages.topic import topic_asks
from stilltide.pipeline.console.render import query_of
from stilltide.pipeline.console.views import number_in
from stilltide.pipeline.core.status.asks import ConfigsAsk, PartitionsAsk, RecordsAsk, TopicsAsk
from stilltide.schemas.values import TopicPartition
from tests.support.console.answers import ADDRESSES, ANSWERS
from tests.support.console.pages import shown, text
from tests.support.console.states import BUSY, CLUSTER_AWAY, EMPTY, STATES
from tests.support.hostile import HOSTILE, is_harmless
from tests.support.status.samples import A, B

RECORDS = ADDRESSES["topic"]


def test_what_was_chosen_is_asked_and_nothing_else():
    """Without a topic the names; with one its partitions; with a partition its records."""
    data = TopicPartition("orders", 3)
    assert topic_asks(BUSY, {}) == (TopicsAsk(A, ""),)
    assert topic_asks(BUSY, {"cluster": "b", "topic": "orders", "first": "50"}) == (
        PartitionsAsk(B, "orders", 50),
        ConfigsAsk(B, "orders"),
        TopicsAsk(B, "orders", 0, with_system=True),
    )
    assert topic_asks(BUSY, {"system": "shown", "first": "50"}) == (
        TopicsAsk(A, "", 50, with_system=True),
    )
    query = {"topic": "orders", "partition": "3"}
    assert topic_asks(BUSY, query) == (RecordsAsk(A, data, None),)
    assert topic_asks(BUSY, query | {"from": "17"}) == (RecordsAsk(A, data, 17),)
    at = RecordsAsk(A, data, None, since_ms=1_700_000_000_000)
    for time in ("2023-11-14 22:13:20", "2023-11-14T22:13:20Z", "2023-11-14 23:13:20+01:00"):
        assert topic_asks(BUSY, query | {"from": time}) == (at,)
    assert topic_asks(BUSY, query | {"from": "yesterday"}) == ()
    assert topic_asks(BUSY, query | {"offset": "17"}) == (RecordsAsk(A, data, 17, only=True),)


@pytest.mark.parametrize("query", [{"cluster": "b"}, {"cluster": "nobody"}, {"topic": "a\x00b"}])
def test_nothing_is_asked_of_what_cannot_answer(query: dict[str, str]):
    """A cluster that is away, or that nobody knows, or a name that no topic can have."""
    assert topic_asks(CLUSTER_AWAY, query) == ()


@pytest.mark.parametrize("given", ["", "-1", "1.5", "x", "1" * 19, "\u0663"])
def test_what_is_no_number_is_not_chosen(given: str):
    """An address is text of a stranger."""
    assert number_in({"from": given}, "from") is None


def test_records_from_nowhere_are_refused():
    """What is neither an offset nor a time is said, with an example."""
    said = text("topic?topic=orders&partition=3&from=yesterday", BUSY, ANSWERS["busy"])
    assert "this is neither an offset nor a time: such as 1200000, or 2026-11-28" in said
    at = "topic?topic=orders&partition=3&from=2023-11-14+22:12"
    assert "neither" not in text(at, BUSY, ANSWERS["busy"])


def test_choices_are_cut_to_what_a_page_knows():
    """So that an address cannot make the console keep anything else."""
    given = {"topic": "orders", "evil": "x", "partition": "", "cluster": "c" * 301}
    assert query_of("topic", given) == {"topic": "orders"}
    assert query_of("overview", given) == {}


def test_a_partition_shows_ends_and_where_readers_wait():
    """High watermark, last stable offset, max read position, since when, and the way to records."""
    said = text("topic?topic=orders", BUSY, ANSWERS["busy"])
    assert "1,204,310 1,204,210" in said
    assert "1,200,311" in said
    assert "1,204,094 for 1:7001 1 min" in said
    page = shown("topic?topic=orders", BUSY, ANSWERS["busy"])
    assert 'href="topic?cluster=a&amp;topic=orders&amp;partition=7"' in page
    assert 'href="topic?cluster=a&amp;topic=orders&amp;first=50"' in page
    last = shown("topic?topic=orders&first=950", BUSY, ANSWERS["busy"])
    assert "first=1000" not in last
    assert "first=900" in last


def test_topics_are_listed_with_figures():
    """Size, offsets, rate and policy; topics of Stilltide are behind a link, and back again."""
    said = text("topic", BUSY, ANSWERS["busy"])
    assert "orders 1,000 3 39.1 MiB 104,310,000 1,204 delete defaults" in said
    assert "returns 1,000 3 13.1 GiB 104,310,000 ? delete defaults" in said
    page = shown("topic", BUSY, ANSWERS["busy"])
    assert 'href="topic?cluster=a&amp;system=shown">show the 14 topics of Stilltide' in page
    assert 'href="topic?cluster=a&amp;first=5">later' in page
    everything = shown("topic?system=shown", BUSY, ANSWERS["busy"])
    assert 'href="topic?cluster=a">hide the topics' in everything


def test_a_topic_has_its_figures_and_configs():
    """What is set on it first, with numbers as people read them; and the way back."""
    said = text("topic?topic=orders", BUSY, ANSWERS["busy"])
    assert "retention.ms 604800000 7 d this topic cleanup.policy delete the cluster" in said
    assert "max.message.bytes 1048588 1.0 MiB the cluster" in said
    assert "retention.bytes -1 without limit" in said
    assert "index.interval.bytes" not in said
    page = shown("topic?topic=orders", BUSY, ANSWERS["busy"])
    assert 'href="topic?cluster=a">all topics' in page
    assert "4.8 MiB" in page, "the size of partition 1"


def test_records_say_what_readers_do_with_them():
    """Visible, aborted by either kind of transaction, undecided, behind it, withheld."""
    said = text(RECORDS, BUSY, ANSWERS["busy"])
    for words in ("visible later", "behind offset 1,20", "undecided", "aborted", "withheld"):
        assert words in said
    assert "1,204,310 1,204,210 1,200,933" in said
    first = text(RECORDS + "&from=1100000", BUSY, ANSWERS["busy"])
    assert "native transaction" in first
    assert "1,910 more; another offset shows them" in first
    assert "earlier" not in first
    assert "newest" in first


def test_bytes_are_shown_as_the_address_says():
    """The choice stays in the form and in the links."""
    by_hex = shown(RECORDS + "&as=hex", BUSY, ANSWERS["busy"])
    assert "7b 22 6f 72 64 65 72" in by_hex
    assert "<option selected>hex</option>" in by_hex
    assert "as=hex&amp;from=1200310" in by_hex
    assert "partition=3&amp;as=hex&amp;offset=1204308" in by_hex


def test_a_record_has_a_page():
    """Verdict, headers, the value on lines; the offsets beside it, and the way back."""
    page = shown(RECORDS + "&offset=1200000", BUSY, ANSWERS["busy"])
    said = text(RECORDS + "&offset=1200000", BUSY, ANSWERS["busy"])
    assert '<pre tabindex="0" class="lines">{\n  &#34;order&#34;: 4711,\n' in page
    assert "header traceparent 00-4bf9" in said
    assert "aborted native transaction" in said
    assert "key null" in said
    for words in ("before", "after", "records around"):
        assert words in said
    none = text(RECORDS + "&offset=7", EMPTY, ANSWERS["empty"])
    assert "There is no record at this offset" in none


@pytest.mark.parametrize("address", [*ADDRESSES.values(), f"{RECORDS}&offset=1100003"])
def test_what_strangers_wrote_is_text(address: str):
    """Topics, keys and values named like a script, control characters, bytes that are no text."""
    page = shown(address, STATES["hostile names"], ANSWERS["hostile names"])
    assert HOSTILE["script"] not in page
    assert "&lt;script&gt;" in page
    assert is_harmless(page)


def test_a_name_in_an_address_stays_one():
    """A name with a quote or ampersand ends neither the attribute nor the choice."""
    page = shown("topic?topic=%22%3E%26partition%3D1", BUSY, ANSWERS["busy"])
    assert "topic=%22%3E%26partition%3D1&amp;partition=7" in page


def test_a_hanging_native_transaction_has_the_command_that_ends_it():
    """Another one has the command that fences its producer."""
    said = text("native", BUSY, ANSWERS["busy"])
    assert "stilltide native abort payments 4 88017 --cluster a" in said
    assert "stilltide native fence invoicer-0 --cluster a" in said
    assert "140 complete commit" in said
    assert "Choose a topic." in said
    assert "remember" in text(ADDRESSES["native"], BUSY, ANSWERS["busy"])
