"""Configs of a topic on three clusters with links between all of them (H8), under any history.

A look is two steps, since brokers answer before a link alters: anything may come in between.
"""

from itertools import permutations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from stilltide.pipeline.core.links.configs import (
    AlterConfigs,
    Authority,
    ConfigFollower,
    LeftAlone,
    ReadSourceEnds,
    TopicConfigs,
    TopicPair,
    authority,
)
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition
from tests.support.examples import examples

NAMES = tuple(map(ClusterName, "abc"))
PAIRS = tuple(permutations(NAMES, 2))
DATA = TopicPartition("orders", 0)
DEFAULTS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "retention.ms": "604800000",
}
VALUES = {
    "cleanup.policy": ("delete", "compact", "compact,delete", None),
    "max.message.bytes": ("1000", "2000000", "3000000", None),
    "min.insync.replicas": ("2", None),
    "retention.ms": ("1", "2", "3", None),
}
CONFIGS = st.sampled_from(sorted(VALUES))
LEFT_ALONE = "retention.ms"
ROUNDS = 12
"""Looks of each link after which nothing may change any more."""


class LinkedConfigs(RuleBasedStateMachine):
    """Operators set configs everywhere, links look and alter, and some alterations fail."""

    @initialize(
        links=st.sets(st.sampled_from(PAIRS), min_size=1),
        lead=st.sampled_from(["", *NAMES]),
        listed=st.booleans(),
    )
    def begin(self, links: set[tuple[ClusterName, ClusterName]], lead: str, *, listed: bool):
        """Any links between the clusters, all with the same settings."""
        self.lead, self.listed = lead, listed
        self.own: dict[ClusterName, dict[str, str]] = {name: {} for name in NAMES}
        self.links = {
            pair: ConfigFollower(LeftAlone.parsed([LEFT_ALONE] if listed else []))
            for pair in sorted(links)
        }
        self.known: set[tuple[ClusterName, ClusterName]] = set()
        self.pending: dict[tuple[ClusterName, ClusterName], AlterConfigs] = {}
        self.end = 0
        self.copied = dict.fromkeys(self.links, 0)
        self.ends_asked: dict[tuple[ClusterName, ClusterName], int] = {}
        self.had = {(name, config): {DEFAULTS[config]} for name in NAMES for config in VALUES}
        self.by_links = 0

    @rule(name=st.sampled_from(NAMES), config=CONFIGS, pick=st.integers(0, 3))
    def set_by_hand(self, name: ClusterName, config: str, pick: int):
        """An operator sets or unsets a config of one cluster's topic."""
        choices = VALUES[config]
        self.put(name, {config: choices[pick % len(choices)]})

    @rule(count=st.integers(1, 3))
    def write(self, count: int):
        """Records come to the source."""
        self.end += count

    @rule(pick=st.integers(0, 5))
    def copy(self, pick: int):
        """A link copies all that its source has."""
        pair = self.pair(pick)
        self.copied[pair] = self.end

    @rule()
    def buckets_become_visible(self):
        """Every link has committed a bucket by now."""
        self.known = set(self.links)

    @rule(pick=st.integers(0, 5))
    def look(self, pick: int):
        """A link reads both sides and decides; what it alters is still under way."""
        pair = self.pair(pick)
        effects = self.links[pair].seen(self.topic_pair(pair))
        for effect in effects:
            if isinstance(effect, ReadSourceEnds):
                self.links[pair].ends_read("orders", {DATA: EndOffset(self.end)})
                self.ends_asked[pair] = self.end
            elif isinstance(effect, AlterConfigs):
                self.check(pair, effect)
                self.pending[pair] = effect

    @precondition(lambda self: bool(self.pending))
    @rule(pick=st.integers(0, 5), succeeds=st.booleans())
    def alter(self, pick: int, *, succeeds: bool):
        """What a link wanted to alter is altered, or refused."""
        pair = sorted(self.pending)[pick % len(self.pending)]
        effect = self.pending.pop(pair)
        if succeeds:
            self.put(pair[1], dict(effect.changes))
            self.by_links += 1

    @invariant()
    def one_link_leads(self):
        """Of two links into a cluster at most one alters; none alters back to one that leads."""
        if not hasattr(self, "links"):
            return
        self_known, self.known = self.known, set(self.links)
        leading = [
            pair for pair in self.links if self.may(pair) in (Authority.CHANGES, Authority.ALL)
        ]
        self.known = self_known
        targets = [target for _, target in leading]
        assert len(set(targets)) == len(targets)
        assert not {source for source, _ in leading} & set(targets)

    def teardown(self):
        """No flapping: when operators are still, the links come to rest, whatever their order."""
        if not hasattr(self, "links"):
            return
        self.known = set(self.links)
        for pair in self.links:
            self.copied[pair] = self.end
        for _ in range(ROUNDS):
            # All links read before any of them alters: the order in which they would swap for ever.
            for pick in range(len(self.links)):
                self.look(pick)
            while self.pending:
                self.alter(0, succeeds=True)
        before = self.by_links
        for pick in range(len(self.links)):
            self.look(pick)
        assert not self.pending
        assert self.by_links == before
        if self.lead:
            self.check_in_step()

    def check(self, pair: tuple[ClusterName, ClusterName], effect: AlterConfigs):
        """What may be altered, and when."""
        assert "min.insync.replicas" not in effect.changes
        assert not (self.listed and LEFT_ALONE in effect.changes)
        assert self.lead in ("", pair[0])
        there, here = (TopicConfigs(self.own[name], self.all_of(name)) for name in pair)
        if not self.lead:
            for config in effect.changes.keys() - {"max.message.bytes"}:
                # A value that the source never had was set by hand on the target, and stays.
                assert self.all_of(pair[1])[config] in self.had[pair[0], config]
        compacts = there.compacted and not here.compacted and "cleanup.policy" in effect.changes
        if compacts:
            assert self.copied[pair] >= self.ends_asked[pair]
        if "retention.ms" in effect.changes:
            policy = effect.changes.get("cleanup.policy", here.effective["cleanup.policy"])
            wanted = set((there.effective["cleanup.policy"] or "").split(","))
            assert set((policy or "delete").split(",")) == wanted

    def check_in_step(self):
        """Every target of the leading cluster has its configs, except those of the list."""
        for source, target in self.links:
            if source == self.lead:
                there, here = self.all_of(source), self.all_of(target)
                assert set((there["cleanup.policy"] or "").split(",")) == set(
                    (here["cleanup.policy"] or "").split(",")
                )
                assert self.listed or there["retention.ms"] == here["retention.ms"]
                assert int(there["max.message.bytes"]) <= int(here["max.message.bytes"])

    def put(self, name: ClusterName, changes: dict[str, str | None]):
        """Sets or unsets configs."""
        own = {**self.own[name], **changes}
        self.own[name] = {config: value for config, value in own.items() if value is not None}
        for config in changes:
            self.had[name, config].add(self.all_of(name)[config])

    def all_of(self, name: ClusterName) -> dict[str, str]:
        """All configs of a cluster's topic."""
        return {**DEFAULTS, **self.own[name]}

    def may(self, pair: tuple[ClusterName, ClusterName]) -> Authority:
        """What a link may alter, by the buckets that it sees."""
        source, target = pair
        into_source, into_target = (
            {one for one, into in self.known if into == side} for side in (source, target)
        )
        return authority(self.lead, source, into_source, into_target)

    def topic_pair(self, pair: tuple[ClusterName, ClusterName]) -> TopicPair:
        """The topic as a link sees it now."""
        there, here = (TopicConfigs(dict(self.own[one]), self.all_of(one)) for one in pair)
        return TopicPair(
            "orders", (b"1", b"2"), there, here, self.may(pair), {DATA: self.copied[pair]}
        )

    def pair(self, pick: int) -> tuple[ClusterName, ClusterName]:
        """One of the links."""
        return list(self.links)[pick % len(self.links)]


LinkedConfigs.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=40)
TestLinkedConfigs = LinkedConfigs.TestCase
