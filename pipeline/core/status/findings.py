"""Judges the state of all clusters: the lines that need a person, each with the command that helps.

*Source*: docs/operating.md, Status.

*Invariants*: what ends by itself is no finding that needs a person; one cause gives one line: of a
cluster that is away nothing else is said, and without a worker nobody misses what only workers do.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from stilltide.pipeline.core.outside_log import OutsideLog
from stilltide.pipeline.core.status.values import (
    AuditStatus,
    ClusterSeen,
    EndedStatus,
    GroupStatus,
    LinkStatus,
    ReaderHold,
    SystemStatus,
)
from stilltide.schemas.coordinator.transactions import HINDERED
from stilltide.schemas.replication.origins import publish_of
from stilltide.schemas.topics import PREFIX
from stilltide.schemas.values import ClusterName, TopicPartition

_COORDINATOR = "coordinator"
"""Kind of the owners that answer for themselves."""


class Weight(StrEnum):
    """Whether a finding needs a person now.

    Attributes:
        ACT: it needs a person, and does not pass by itself.
        WATCH: it may pass by itself, and is worth a second look.
    """

    ACT = "act"
    WATCH = "watch"


class SubjectKind(StrEnum):
    """What a finding can be about, of which the console has a page for each.

    Attributes:
        TRANSACTION: a coordinated transaction.
        TOPIC: a topic, a partition of it, or a record.
        GROUP: a consumer group.
        LINK: a link or publish.
    """

    TRANSACTION = "transaction"
    TOPIC = "topic"
    GROUP = "group"
    LINK = "link"


class Subject(NamedTuple):
    """What a finding is about, at the finding's cluster.

    Attributes:
        kind: the kind.
        name: the transaction's id, or the name of the topic, group or link.
        partition: number of the topic's partition; None: the whole topic.
        offset: offset of the partition's record; None: the whole partition.
    """

    kind: SubjectKind
    name: str
    partition: int | None = None
    offset: int | None = None


class StatusFinding(NamedTuple):
    """A line about something that is not as it should be.

    Attributes:
        weight: whether it needs a person.
        cluster: name of the cluster; empty: of none in particular.
        text: what is found.
        command: the command that helps, or shows more; may be empty.
        about: what it is about, the same in each state; empty: the text is.
        since_ms: since when, milliseconds since 1970; None: it was seen once.
        is_dated: whether the text says since when.
        subjects: the transactions, partitions, groups and links that the text names.
    """

    weight: Weight
    cluster: str
    text: str
    command: str
    about: str = ""
    since_ms: int | None = None
    is_dated: bool = False
    subjects: tuple[Subject, ...] = ()

    def shown(self, now_ms: int) -> str:
        """The text, and since when it is so."""
        if self.is_dated:
            return self.text
        since_ms = self.since_ms
        since = "seen once" if since_ms is None else f"since {shown_age(now_ms - since_ms)}"
        return f"{self.text} ({since})"


STANDS_MS = 10_000
"""Age from which a finding needs a person: on a busy machine an answer comes late, and an owner
that has ended goes on at the next try."""


PLACES_MAX = 3
"""Places that a finding names where readers wait for one transaction."""


@dataclass(frozen=True, slots=True)
class StatusLimits:
    """From when on something is worth a line.

    Attributes:
        hold_ms: age of a transaction that holds readers back, from which it needs a person.
        link_lag: offsets that a link has left to copy.
        index_lag: offsets that an index is behind the last stable offset.
        audit_age_ms: age of the last audit.
    """

    hold_ms: int = 60_000
    link_lag: int = 10_000
    index_lag: int = 100_000
    audit_age_ms: int = 24 * 60 * 60 * 1000


LIMITS = StatusLimits()


def findings(status: SystemStatus, limits: StatusLimits = LIMITS) -> tuple[StatusFinding, ...]:
    """What is not as it should be: first what needs a person, else in the order of the screen."""
    every = [
        *(one for cluster in status.clusters for one in _of_cluster(cluster, status, limits)),
        *_of_links(status, limits),
        *_of_groups(status),
        *_of_audits(status, limits),
    ]
    return _sorted(every)


class StandingFindings:
    """What stands, for who sees one state after the other; `findings` knows one state only.

    Args:
        limits: from when on something is worth a line.
    """

    def __init__(self, limits: StatusLimits = LIMITS) -> None:
        self._limits = limits
        self._first_ms: dict[tuple[str, str], int] = {}

    def of(self, status: SystemStatus) -> tuple[StatusFinding, ...]:
        """As `findings`, with the time since when each stands in every state.

        What has not stood for `STANDS_MS` is worth a look, and needs nobody yet.
        """
        present = findings(status, self._limits)
        keys = [(finding.cluster, finding.about or finding.text) for finding in present]
        self._first_ms = {key: self._first_ms.get(key, status.now_ms) for key in keys}
        return _sorted(
            finding
            if finding.since_ms is not None
            else _aged(finding, self._first_ms[key], status.now_ms)
            for key, finding in zip(keys, present, strict=True)
        )


def _aged(finding: StatusFinding, since_ms: int, now_ms: int) -> StatusFinding:
    """A finding that stands since then."""
    is_young = now_ms - since_ms < STANDS_MS
    weight = Weight.WATCH if is_young else finding.weight
    return finding._replace(weight=weight, since_ms=since_ms)


def _sorted(every: Iterable[StatusFinding]) -> tuple[StatusFinding, ...]:
    return tuple(sorted(every, key=lambda it: it.weight is not Weight.ACT))


def needs_person(findings: Iterable[StatusFinding]) -> bool:
    """Whether one of the findings needs a person."""
    return any(finding.weight is Weight.ACT for finding in findings)


def _of_cluster(
    cluster: ClusterSeen, status: SystemStatus, limits: StatusLimits
) -> Iterator[StatusFinding]:
    if cluster.away:
        yield _away(cluster, status)
        return
    at = f"--cluster {shlex.quote(cluster.name)}"
    brokers, workers = cluster.brokers.value, cluster.workers.value
    if brokers is not None and brokers.missing:
        text = f"{brokers.missing} of {brokers.registered} brokers are down"
        command = f"stilltide topics check {at}"
        yield StatusFinding(Weight.ACT, cluster.name, text, command, "brokers")
    if workers == ():
        text = "no worker runs: nothing commits, and no position is carried over"
        yield StatusFinding(Weight.ACT, cluster.name, text, f"stilltide worker {at}")
        yield from _of_holds(cluster, limits)
        yield from _of_outside(cluster, at)
        return
    yield from _of_parts(cluster)
    versions = sorted({worker.version or "unknown" for worker in workers or ()})
    if len(versions) > 1:
        text = f"workers of several versions run: {', '.join(versions)}"
        yield StatusFinding(Weight.WATCH, cluster.name, text, "")
    for coordinator in cluster.coordinators.value or ():
        if coordinator.serving:
            continue
        why = f"does not serve: {coordinator.problem}" if coordinator.problem else "does not answer"
        text = f"coordinator {coordinator.number} {why}"
        command, about = f"stilltide coordinator stats {at}", f"coordinator {coordinator.number}"
        yield StatusFinding(Weight.ACT, cluster.name, text, command, about)
    for ended in cluster.ended.value or ():
        if ended.kind != _COORDINATOR:  # a coordinator that has ended has said so itself
            hindered = ended.kind == HINDERED
            text = ended.why if hindered else f"{ended.shown} has ended: {ended.why}"
            step = ended.hint if hindered else _restoring(ended, at)
            finding = StatusFinding(Weight.ACT, cluster.name, text, step)
            yield _aged(finding, ended.ended_ms, status.now_ms)
    yield from _of_compacted(cluster, status.now_ms, at)
    yield from _of_holds(cluster, limits)
    yield from _of_prepared(cluster, limits)
    yield from _of_outside(cluster, at)
    yield from _of_stored(cluster, limits, at)


def _restoring(ended: EndedStatus, at: str) -> str:
    """The next step for an owner that has ended: repair what is damaged, else its own hint."""
    topic = ended.why.partition("/")[0]
    if topic.startswith(PREFIX):
        return f"stilltide repair {topic.removeprefix(PREFIX)} {at}"
    return ended.hint or f"stilltide coordinator stats {at}"


def _away(cluster: ClusterSeen, status: SystemStatus) -> StatusFinding:
    """A cluster is away; a group that another cluster knows can go on there."""
    text = f"away: no broker of {cluster.address} answers"
    is_dated = cluster.sign_ms is not None
    if cluster.sign_ms is not None:
        text += f"; last sign of it {shown_age(status.now_ms - cluster.sign_ms)} ago"
    reached = [other.name for other in status.clusters if not other.away]
    group = next((other for other in status.groups.value or () if other.cluster in reached), None)
    command = f"stilltide topics check --cluster {shlex.quote(cluster.name)}"
    if group is not None:
        names = f"{shlex.quote(group.topic)} {shlex.quote(group.group)}"
        command = f"stilltide group failover {names} --to {shlex.quote(group.cluster)} --dry-run"
    finding = StatusFinding(Weight.ACT, cluster.name, text, command, "away", is_dated=is_dated)
    return finding if cluster.sign_ms is None else _aged(finding, cluster.sign_ms, status.now_ms)


def _of_parts(cluster: ClusterSeen) -> Iterator[StatusFinding]:
    """What could not be read."""
    reported: set[str] = set()
    for name, part in cluster.parts():
        if part.problem and part.problem not in reported:
            reported.add(part.problem)
            text = f"{name} cannot be read: {part.problem}"
            yield StatusFinding(Weight.WATCH, cluster.name, text, part.hint, name, part.read_ms)


def _of_holds(cluster: ClusterSeen, limits: StatusLimits) -> Iterator[StatusFinding]:
    now_ms = cluster.holds.read_ms or 0
    for hold in cluster.holds.value or ():
        age_ms = None if hold.since_ms is None else now_ms - hold.since_ms
        if not hold.hanging and (age_ms is None or age_ms < limits.hold_ms):
            continue
        text = (
            f"{hold.data}: readers wait at offset {hold.offset} for transaction {hold.holder}"
            f"{' of ' + hold.client if hold.client else ''}{_since(age_ms)};"
            f" {hold.behind} offset{'s' * (hold.behind != 1)} behind it"
        )
        weight = Weight.ACT
        if hold.hanging:
            text += "; it hangs: no coordinator will end it"
        elif hold.is_own:
            text += "; it is Stilltide's own: the next run of its link or index ends it, or Kafka"
            weight = Weight.WATCH
        yield StatusFinding(
            weight,
            cluster.name,
            text,
            ending_command(hold, cluster.name),
            f"{hold.data}@{hold.offset}",
            hold.since_ms,
            is_dated=hold.since_ms is not None,
            subjects=(
                _partition(hold.data, hold.offset),
                *(() if hold.native else (Subject(SubjectKind.TRANSACTION, hold.holder),)),
            ),
        )


def _partition(data: TopicPartition, offset: int | None = None) -> Subject:
    return Subject(SubjectKind.TOPIC, data.topic, data.partition, offset)


def _of_prepared(cluster: ClusterSeen, limits: StatusLimits) -> Iterator[StatusFinding]:
    """Prepared transactions that nobody decides (L7), with the decision's command."""
    known, now_ms = cluster.transactions.value, cluster.transactions.read_ms or 0
    for txn in () if known is None else known.listed:
        if txn.state != "PREPARED" or txn.prepared_ms is None:
            continue
        age_ms = now_ms - txn.prepared_ms
        if age_ms >= limits.hold_ms:
            decider = f" by {txn.decider}" if txn.decider else ""
            text = (
                f"transaction {txn.txn}{' of ' + txn.client if txn.client else ''} is prepared, and"
                f" has waited to be decided{decider}{_since(age_ms)}{_held_up(cluster, txn.txn)}"
            )
            yield StatusFinding(
                Weight.ACT,
                cluster.name,
                text,
                deciding_command(txn.txn, cluster.name),
                since_ms=txn.prepared_ms,
                is_dated=True,
                subjects=(Subject(SubjectKind.TRANSACTION, txn.txn),),
            )


def deciding_command(txn: str, cluster: str) -> str:
    """The command with which an operator decides how a prepared transaction ends."""
    at = f"--cluster {shlex.quote(cluster)}"
    return f"stilltide txn commit|abort --prepared {txn} --reason TEXT {at}"


def _held_up(cluster: ClusterSeen, txn: str) -> str:
    """Where readers wait for a transaction."""
    places = [f"{it.data}@{it.offset}" for it in cluster.holds.value or () if it.holder == txn]
    more = f" and {len(places) - PLACES_MAX} more" if len(places) > PLACES_MAX else ""
    return f"; readers wait at {', '.join(places[:PLACES_MAX])}{more}" if places else ""


def ending_command(hold: ReaderHold, cluster: str) -> str:
    """The command that ends the transaction of a hold; it shows it first, and acts with `--yes`.

    A prepared one is only shown: what its decider says must be looked up first. Empty for one of
    Stilltide's own links and indexes, which ends without a person.
    """
    at = f"--cluster {shlex.quote(cluster)}"
    if hold.prepared:
        return f"stilltide txn describe {hold.holder} {at}"
    if not hold.native:
        return f"stilltide txn abort {hold.holder} {at}"
    if hold.hanging:
        return f"stilltide native abort {hold.data.topic} {hold.data.partition} {hold.offset} {at}"
    if hold.is_own:
        return ""
    return f"stilltide native fence {shlex.quote(hold.holder)} {at}"


def _since(age_ms: int | None) -> str:
    return "" if age_ms is None else f" for {shown_age(age_ms)}"


def _of_outside(cluster: ClusterSeen, at: str) -> Iterator[StatusFinding]:
    """Groups that no consumer can go on with; a group on a topic gives one line."""
    first: dict[tuple[str, str], list[OutsideLog]] = {}
    for position in cluster.outside.value or ():
        first.setdefault((position.data.topic, position.group), []).append(position)
    for positions in first.values():
        more = len(positions) - 1
        text = positions[0].text + (f"; and {more} more partitions" if more else "")
        group, place = Subject(SubjectKind.GROUP, positions[0].group), _partition(positions[0].data)
        yield StatusFinding(
            Weight.ACT, cluster.name, text, positions[0].command(at), subjects=(group, place)
        )


def _of_compacted(cluster: ClusterSeen, now_ms: int, at: str) -> Iterator[StatusFinding]:
    for compacted in cluster.compacted.value or ():
        text = (
            f"{compacted.topic} holds records of transactions and compacts (seen since"
            f" {shown_age(now_ms - compacted.seen_ms)}): committed values are deleted"
        )
        yield StatusFinding(
            Weight.ACT,
            cluster.name,
            text,
            f"stilltide topics check {at}",
            since_ms=compacted.seen_ms,
            is_dated=True,
            subjects=(Subject(SubjectKind.TOPIC, compacted.topic),),
        )


def _of_stored(cluster: ClusterSeen, limits: StatusLimits, at: str) -> Iterator[StatusFinding]:
    for snapshot in cluster.snapshots.value or ():
        if snapshot.problem:
            text = f"{snapshot.data}: readers cannot use the snapshot: {snapshot.problem}"
            command = f"stilltide snapshot verify {snapshot.data.topic} {at}"
            about, subjects = f"snapshot {snapshot.data}", (_partition(snapshot.data),)
            yield StatusFinding(Weight.ACT, cluster.name, text, command, about, subjects=subjects)
    for index in cluster.index.value or ():
        subjects = (_partition(index.data),)
        if index.problem:
            text = f"{index.data}: the index cannot be used: {index.problem}"
            command, about = f"stilltide index drop {index.data.topic} {at}", f"index {index.data}"
            yield StatusFinding(Weight.ACT, cluster.name, text, command, about, subjects=subjects)
        elif index.lag is not None and index.lag > limits.index_lag:
            text = f"{index.data}: the index is {index.lag} offsets behind"
            command, about = f"stilltide index list {at}", f"index lag {index.data}"
            yield StatusFinding(Weight.WATCH, cluster.name, text, command, about, subjects=subjects)


def _of_links(status: SystemStatus, limits: StatusLimits) -> Iterator[StatusFinding]:
    for links in status.links.values():
        for link in links.value or ():
            finding = None if link.away else _of_link(link, limits, status.now_ms)
            if finding is not None:
                yield finding._replace(subjects=(Subject(SubjectKind.LINK, link.source),))


def link_state(link: LinkStatus, status: SystemStatus) -> str:
    """The state of a link in a few words."""
    if not link.away:
        return "ended" if link.problem else "runs" if link.running else "stopped"
    cluster = status.cluster(ClusterName(link.away))
    sign_ms = None if cluster is None else cluster.sign_ms
    since = "" if sign_ms is None else f" since {shown_age(status.now_ms - sign_ms)}"
    return f"not known{since}: cluster {link.away} does not answer"


def _of_link(link: LinkStatus, limits: StatusLimits, now_ms: int) -> StatusFinding | None:
    name = f"the link from {link.source}"
    command = (
        f"stilltide replicate --from {shlex.quote(link.source)} --to {shlex.quote(link.target)}"
    )
    if link.problem:
        return None  # the cluster's line about its owners says so
    publish = publish_of(ClusterName(link.source))
    if publish is not None and not link.running:  # a publish writes no beats
        at = f"--to {shlex.quote(publish.target)} --cluster {shlex.quote(link.target)}"
        command = f"stilltide publish {shlex.quote(publish.source)} {at}"
        text = f"{publish.link}: {_last_signs(link, now_ms)}"
        sign_ms = link.sign_ms
        return StatusFinding(Weight.WATCH, link.target, text, command, publish.link, sign_ms)
    if not link.running:
        forget = f"stilltide link forget {shlex.quote(link.source)} --to {shlex.quote(link.target)}"
        text = f"{name} does not run: {_last_signs(link, now_ms)}; retired: {forget}"
        sign_ms = link.sign_ms
        return StatusFinding(
            Weight.ACT, link.target, text, command, name, sign_ms, is_dated=sign_ms is not None
        )
    if (link.lag or 0) > limits.link_lag:
        text = f"{name} has {link.lag} offsets left to copy"
        return StatusFinding(Weight.WATCH, link.target, text, "", f"lag of {name}")
    return None


def _last_signs(link: LinkStatus, now_ms: int) -> str:
    """When the link was heard of, and the error that came last, with the next step."""
    signs = "it has never copied"
    if link.beat_ms is not None:
        signs = f"last heard of {shown_age(now_ms - link.beat_ms)} ago"
    if link.last_error_ms is None:
        return signs
    hint = f" ({link.last_error_hint})" if link.last_error_hint else ""
    return (
        f"{signs}; last error {shown_age(now_ms - link.last_error_ms)} ago: {link.last_error}{hint}"
    )


def _of_groups(status: SystemStatus) -> Iterator[StatusFinding]:
    if status.groups.problem:
        text = f"groups cannot be read: {status.groups.problem}"
        hint, read_ms = status.groups.hint, status.groups.read_ms
        yield StatusFinding(Weight.WATCH, "", text, hint, "groups", read_ms)
    failed: set[tuple[str, str]] = set()
    for group in status.groups.value or ():
        if group.problem and (group.topic, group.group) not in failed:
            failed.add((group.topic, group.group))
            text = f"group {group.group} on {group.topic} cannot be read: {group.problem}"
            about = f"reading group {group.group} on {group.topic}"
            yield StatusFinding(Weight.WATCH, "", text, _describe(group), about, group.read_ms)
        stuck = next((partition for partition in group.partitions if partition.urgent), None)
        if stuck is not None:
            text = f"group {group.group} on {group.topic}/{stuck.partition}: {stuck.why}"
            about = f"group {group.group} on {group.topic}/{stuck.partition}"
            yield StatusFinding(
                Weight.ACT,
                group.cluster,
                text,
                _describe(group),
                about,
                subjects=(
                    Subject(SubjectKind.GROUP, group.group),
                    Subject(SubjectKind.TOPIC, group.topic, stuck.partition),
                ),
            )


def _describe(group: GroupStatus) -> str:
    return f"stilltide group describe {shlex.quote(group.topic)} {shlex.quote(group.group)}"


def _of_audits(status: SystemStatus, limits: StatusLimits) -> Iterator[StatusFinding]:
    for directory, part in status.audits.items():
        if part.problem:
            text = f"the audit in {directory} cannot be read: {part.problem}"
            about = f"audit {directory}"
            yield StatusFinding(Weight.WATCH, "", text, part.hint, about, part.read_ms)
        elif part.value is not None:
            yield from _of_audit(directory, part.value, status.now_ms, limits)


def _of_audit(
    directory: str, audit: AuditStatus, now_ms: int, limits: StatusLimits
) -> Iterator[StatusFinding]:
    if audit.verdict == "invalid":
        text = f"the audit in {directory} is invalid: {audit.findings} findings"
        command = f"open {shlex.quote(directory)}/report.html"
        yield StatusFinding(Weight.ACT, "", text, command, since_ms=audit.ended_ms)
    age_ms = now_ms - audit.ended_ms
    if age_ms > limits.audit_age_ms:
        text = f"the last audit in {directory} ended {shown_age(age_ms)} ago"
        yield StatusFinding(
            Weight.WATCH,
            "",
            text,
            "stilltide audit follow --help",
            since_ms=audit.ended_ms,
            is_dated=True,
        )


_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def shown_age(age_ms: int) -> str:
    """An age in the largest unit of which there is at least one, such as `14 s` or `3 h`."""
    for size, unit in _UNITS:
        if age_ms >= size:
            return f"{age_ms // size} {unit}"
    return f"{max(0, age_ms)} ms"
