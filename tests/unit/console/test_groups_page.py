"""The page of groups, without a browser."""

from stilltide.pipeline.console.pages.groups import groups_asks
from stilltide.pipeline.core.status.asks import GroupAsk, GroupsAsk, LagAsk
from tests.support.console.answers import ANSWERS
from tests.support.console.pages import shown, text
from tests.support.console.states import BUSY, CLUSTER_AWAY, EMPTY, C
from tests.support.status.samples import A, B


def test_what_was_chosen_is_asked():
    """All groups of each cluster, or of one; or one group; nothing of a cluster that is away."""
    asks = groups_asks(BUSY, {"text": "fra", "first": "50"})
    assert asks == (
        *(GroupsAsk(name, "fra", 50) for name in (A, B, C)),
        *(LagAsk(name, "payments", "fraud") for name in (A, B, C)),
    )
    assert groups_asks(BUSY, {"cluster": "b", "text": "zzz"}) == (GroupsAsk(B, "zzz"),)
    one = groups_asks(BUSY, {"cluster": "b", "group": "zzz"})
    assert one == (GroupAsk(B, "zzz"),)
    assert not [it for it in groups_asks(CLUSTER_AWAY, {}) if it.cluster == B]
    assert groups_asks(CLUSTER_AWAY, {"cluster": "b", "group": "billing"}) == ()


def test_groups_that_are_not_replicated_are_listed_too():
    """With state, members and lag; those of Stilltide itself last; names lead to their pages."""
    said = text("groups", BUSY, ANSWERS["busy"])
    assert "billing stable 3 - - orders" in said
    assert "fraud empty no member 0 0 orders payments" in said
    assert "a-export preparing rebalance 1 ? orders , payments no" in said
    assert said.index("stilltide.workers-a of Stilltide itself") > said.index("a-export prep")
    assert "orders , payments , shipments and 1 more" in said
    page = shown("groups", BUSY, ANSWERS["busy"])
    assert 'href="groups?cluster=b&amp;group=b-export"' in page
    assert 'href="groups?cluster=a&amp;first=9">later' in page


def test_a_group_has_a_page():
    """Members, partitions with lag and reader, what a fail-over reads again, and the way back."""
    page = shown("groups?cluster=a&group=billing", BUSY, ANSWERS["busy"])
    said = text("groups?cluster=a&group=billing", BUSY, ANSWERS["busy"])
    assert "all groups" in said
    assert "orders-0b7d3f61-9a2e-4c55-8f0e 10.0.0.0 2" in said
    assert "orders/0 1,204,000 1,204,310 310 orders-0b7d3f61" in said
    assert "orders/3 - 1,204,310 - returns-0b7d3f61" in said
    assert "reads again 15, others 60" in said
    assert "fraud" not in said
    assert 'href="topic?cluster=a&amp;topic=orders&amp;partition=3"' in page
    other = text("groups?cluster=a&group=export", BUSY, ANSWERS["busy"])
    assert "Replicated groups" not in other
    gone = text("groups?cluster=a&group=g", EMPTY, ANSWERS["empty"])
    assert "dead not there" in gone
    assert "The group has committed nothing" in gone


def test_groups_are_searched():
    """Replicated ones and all others; what does not fit is said."""
    said = text("groups?text=fra", BUSY, ANSWERS["busy"])
    assert "billing" not in said
    assert "fraud payments reads here" in said
    none = text("groups?text=zzz", BUSY, ANSWERS["busy"])
    assert "No replicated group has a name like this." in none
    assert "No group has a name like this." in none


def test_positions_are_on_the_page_of_their_group():
    """The list says how many there are, and the most that one is behind."""
    listed = text("groups", BUSY, ANSWERS["busy"])
    assert "fraud payments b 6 100 1,204 now" in listed
    assert "1,198,935" not in listed
    page = text("groups?cluster=a&group=fraud", BUSY, ANSWERS["busy"])
    assert "payments b 5 1,198,935 1,199,035 5 20 in sync" in page
