"""Rules of links (H) and of groups on several clusters (I), switched off."""

from typing import Any

from stilltide.pipeline.core.groups import frontier, group
from stilltide.pipeline.core.groups.group import ReplicatedGroup
from stilltide.pipeline.core.links.copying import CopiedPartition
from stilltide.pipeline.core.links.link import Link
from stilltide.pipeline.drivers.groups.read_elsewhere import GroupSignals, ReadElsewhere
from stilltide.schemas.replication.origins import Incarnation
from stilltide.schemas.values import EndOffset, Offset
from tests.simulation.losses.ablation import Ablation, nothing


def _every_record_is_local(original: Any) -> Any:
    def incarnations_read(self: Any, data: Any, _known: Any, now_ms: int) -> Any:
        return original(self, data, (), now_ms)

    return incarnations_read


def _begins_at_its_bucket(_original: Any) -> Any:
    def topics_read(self: Any, topics: Any) -> None:
        self.topics, self._jumped = topics, self.index.newest is None
        at = 0 if self.index.newest is None else self.index.newest.source_from
        self.position = EndOffset(max(at, topics.source_log_start))

    return topics_read


def _whole_bucket(_original: Any) -> Any:
    def copied_below(_index: Any, bucket: Any, _offset: Any) -> Any:
        yield from ()
        return bucket.source_to

    return copied_below


def _to_the_end(_original: Any) -> Any:
    def prefix(view: Any, _indexes: Any, _claimed: Any, _base: Any) -> Any:
        yield from ()
        return Offset(view.decided_end)

    return prefix


def _below_the_commit_only(_original: Any) -> Any:
    def claims_below(view: Any, _indexes: Any, offset: Any) -> Any:
        yield from ()
        own = frontier.intervals.below(offset)
        return {view.incarnation: own} if own else {}

    return claims_below


def _reads_all(_original: Any) -> Any:
    def for_member(self: Any, _committed: Any, topic_id: bytes) -> ReadElsewhere:
        return ReadElsewhere({}, self.generation, Incarnation("", topic_id[:8]))  # pyright: ignore[reportArgumentType]

    return for_member


def _reads_nothing(original: Any) -> Any:
    return lambda self, records: [] if self.claimed else original(self, records)


ABLATIONS = (
    Ablation("H1", "copies are copied on", Link, "incarnations_read", _every_record_is_local,
             clusters=2),
    Ablation("H2", "the position of a link is not written with its copies", CopiedPartition,
             "changes", nothing, clusters=2),
    Ablation("H3", "a link begins where its newest bucket begins", CopiedPartition, "topics_read",
             _begins_at_its_bucket, clusters=2),
    Ablation("I6", "a group claims only what was written on its cluster", group, "claims_below",
             _below_the_commit_only, clusters=2),
    Ablation("I6w", "a group claims the whole bucket in which it stands", frontier,
             "_copied_below", _whole_bucket, clusters=2),
    Ablation("I7", "a group is moved to the decided end", group, "prefix", _to_the_end,
             clusters=2),
    Ablation("I10", "a group that a plain client has set back is moved on", ReplicatedGroup,
             "left_alone_until", lambda _: lambda *_: None, clusters=2),
    Ablation("I11", "a subscription reads what the group has read elsewhere", GroupSignals,
             "for_member", _reads_all, clusters=2),
    Ablation("I11a", "a subscription skips all records of a partition with claims",
             ReadElsewhere, "unread", _reads_nothing, clusters=2),
)  # fmt: skip
