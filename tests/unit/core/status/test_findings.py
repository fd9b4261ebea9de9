"""What of a state needs a person, and which command helps."""

from dataclasses import replace
from typing import Any

import pytest

from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.status.findings import (
    StandingFindings,
    StatusFinding,
    Weight,
    findings,
    needs_person,
    shown_age,
)
from stilltide.pipeline.core.status.values import (
    Aged,
    AuditStatus,
    BrokersStatus,
    CompactedStatus,
    CoordinatorStatus,
    EndedStatus,
    IndexStatus,
    OldestTransaction,
    ReaderHold,
    SnapshotStatus,
    SystemStatus,
    TransactionsStatus,
    WorkerStatus,
)
from stilltide.schemas.coordinator.transactions import HINDERED
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.support.status.samples import (
    AWAY,
    DATA,
    HOLD,
    NATIVE_HOLD,
    NOW_MS,
    WELL,
    A,
    B,
    cluster,
    group,
    link,
    with_a,
)


def only(status: SystemStatus) -> StatusFinding:
    """The only finding of a state."""
    (found,) = findings(status)
    return found


def test_nothing_is_found_where_everything_is_well():
    """A state without faults has no findings, and needs no person."""
    assert findings(WELL) == ()
    assert not needs_person(findings(WELL))


def test_of_a_cluster_that_is_away_only_that_is_said():
    """One cause, one line; a group that another cluster knows can go on there."""
    status = replace(WELL, clusters=(cluster(A), replace(cluster(B), brokers=AWAY)))
    silent = stopped("b")._replace(running=None, away="b")
    status = replace(status, links={**WELL.links, A: Aged((silent,), NOW_MS)})
    found = only(status)
    assert (found.weight, found.cluster) == (Weight.ACT, "b")
    assert "away: no broker of b:9092 answers" in found.text
    assert found.command == "stilltide group failover orders billing --to a --dry-run"


def test_without_a_group_a_cluster_that_is_away_is_looked_at_itself():
    """The command names the cluster."""
    status = replace(WELL, clusters=(replace(cluster(A), brokers=AWAY),), groups=Aged((), NOW_MS))
    assert only(status).command == "stilltide topics check --cluster a"


def test_without_a_worker_nothing_is_missed_that_only_workers_do():
    """Silent coordinators are no findings of their own."""
    silent = (CoordinatorStatus(0, serving=False),)
    found = only(with_a(workers=Aged((), NOW_MS), coordinators=Aged(silent, NOW_MS)))
    assert found.text.startswith("no worker runs")
    assert found.command == "stilltide worker --cluster a"


@pytest.mark.parametrize(
    ("hold", "command"),
    [
        (HOLD, "stilltide txn abort 3:302 --cluster a"),
        (HOLD._replace(prepared=True), "stilltide txn describe 3:302 --cluster a"),
        (NATIVE_HOLD, "stilltide native fence payments --cluster a"),
        (NATIVE_HOLD._replace(hanging=True), "stilltide native abort orders 0 117 --cluster a"),
    ],
)
def test_who_holds_readers_for_long_is_named_with_the_command_that_ends_it(
    hold: ReaderHold, command: str
):
    """Place, transaction and duration; one of Kafka's own has another command."""
    found = only(with_a(holds=Aged((hold,), NOW_MS)))
    assert found.weight is Weight.ACT
    assert found.command == command
    for said in ("orders/0", "offset 117", hold.holder, "2 min", "40 offsets"):
        assert said in found.text


def test_nobody_is_told_to_fence_a_link():
    """A native transaction of Stilltide's own ends by itself: it is worth a look, and no more."""
    own = NATIVE_HOLD._replace(holder="stilltide.link-b-a-0")
    found = only(with_a(holds=Aged((own,), NOW_MS)))
    assert (found.weight, found.command) == (Weight.WATCH, "")
    assert "Stilltide's own" in found.text


def test_l7_a_prepared_transaction_that_nobody_decides_needs_a_person():
    """L7: after a minute, by name, age and decider, with the command that decides."""
    waiting = OldestTransaction(
        "0:7", "PREPARED", NOW_MS - 90_000, 9000, "shop:9ebc", 1, "", NOW_MS - 65_000, "orders-db"
    )
    young = waiting._replace(prepared_ms=NOW_MS - 59_000)
    listed = TransactionsStatus(0, 0, 0, waiting, (), (waiting, young), prepared_count=2)
    found = only(with_a(transactions=Aged(listed, NOW_MS)))
    assert found.weight is Weight.ACT
    assert found.text == (
        "transaction 0:7 of shop:9ebc is prepared, and has waited to be decided by orders-db for"
        " 1 min"
    )
    assert found.command == ("stilltide txn commit|abort --prepared 0:7 --reason TEXT --cluster a")


def test_l7_a_finding_says_whom_a_prepared_transaction_holds_up():
    """L7: the places where readers wait for it, the first ones by name."""
    waiting = OldestTransaction(
        "0:7", "PREPARED", NOW_MS - 90_000, 9000, "", 1, "", NOW_MS - 65_000, "orders-db"
    )
    listed = TransactionsStatus(0, 0, 0, waiting, (), (waiting,), prepared_count=1)
    data = [TopicPartition("orders", number) for number in range(5)]
    holds = tuple(HOLD._replace(holder="0:7", data=it, prepared=True) for it in data)
    seen = with_a(transactions=Aged(listed, NOW_MS), holds=Aged(holds, NOW_MS))
    (text,) = [it.text for it in findings(seen) if it.text.startswith("transaction 0:7")]
    assert text.endswith("readers wait at orders/0@117, orders/1@117, orders/2@117 and 2 more")


def test_a_young_hold_is_no_finding_unless_it_hangs():
    """Transactions end; a hanging one never does."""
    young = NATIVE_HOLD._replace(since_ms=NOW_MS - 5000)
    assert findings(with_a(holds=Aged((young,), NOW_MS))) == ()
    hanging = young._replace(hanging=True, since_ms=None)
    assert needs_person(findings(with_a(holds=Aged((hanging,), NOW_MS))))


def test_a_topic_that_has_begun_to_compact_needs_a_person():
    """C18: with the time since when a worker has seen it, and the command that shows more."""
    compacted = (CompactedStatus("accounts", NOW_MS - 125_000),)
    found = only(with_a(compacted=Aged(compacted, NOW_MS)))
    assert found.weight is Weight.ACT
    assert found.text == (
        "accounts holds records of transactions and compacts (seen since 2 min):"
        " committed values are deleted"
    )
    assert found.command == "stilltide topics check --cluster a"


def stopped(source: str):
    """A link into cluster a without a beat for a minute."""
    return link(source, A)._replace(running=False, beat_ms=NOW_MS - 60_000)


def test_a_link_that_does_not_run_needs_a_person():
    """With the time since it was heard of, and the command that runs it."""
    found = only(replace(WELL, links={A: Aged((stopped("b"),), NOW_MS)}))
    assert found.text == (
        "the link from b does not run: last heard of 1 min ago; retired:"
        " stilltide link forget b --to a"
    )
    assert found.command == "stilltide replicate --from b --to a"


def test_a_link_that_does_not_run_shows_its_last_error():
    """H9: what ended a process that nobody can ask, when, and the next step."""
    error = {"last_error": "orders: 1 partitions on b and 2 on a", "last_error_ms": NOW_MS - 62_000}
    dead = stopped("b")._replace(**error, last_error_hint="drop the copy")
    told = "last error 1 min ago: orders: 1 partitions on b and 2 on a (drop the copy); retired:"
    for link_now, heard in (
        (dead, "last heard of 1 min ago"),
        (dead._replace(beat_ms=None), "it has never copied"),
    ):
        found = only(replace(WELL, links={A: Aged((link_now,), NOW_MS)}))
        assert found.text.startswith(f"the link from b does not run: {heard}; {told}")


def test_a_publish_that_has_never_copied_is_worth_a_look():
    """It writes no beats, and may wait for its source; the command is that of a publish."""
    waits = stopped("publish:orders:orders.committed")._replace(
        beat_ms=None, last_error="away", last_error_ms=NOW_MS - 3000
    )
    found = only(replace(WELL, links={A: Aged((waits,), NOW_MS)}))
    assert found.weight is Weight.WATCH
    assert found.text == (
        "publish:orders:orders.committed: it has never copied; last error 3 s ago: away"
    )
    assert found.command == "stilltide publish orders --to orders.committed --cluster a"


def test_a_link_that_has_ended_shows_why_in_one_line():
    """The worker's reason and hint; that the link is not heard of any more follows from it."""
    why = "orders/0@7: records left the log (tried again in 40 s)"
    ended = EndedStatus("links", "b", NOW_MS - 12_000, why, "drop the copy")
    status = with_a(ended=Aged((ended,), NOW_MS))
    found = only(replace(status, links={A: Aged((stopped("b")._replace(problem=why),), NOW_MS)}))
    assert (found.weight, found.cluster) == (Weight.ACT, "a")
    assert found.text == f"the link from b has ended: {why}"
    assert found.command == "drop the copy"


def test_an_owner_that_has_ended_at_a_damaged_record_is_repaired():
    """By the command that repairs the topic; a coordinator has said so itself."""
    damaged = EndedStatus("pending-ack", "1", NOW_MS, "stilltide.pending-ack-log/1@7: bad", "")
    coordinator = damaged._replace(kind="coordinator")
    found = only(with_a(ended=Aged((damaged, coordinator), NOW_MS)))
    assert found.text.startswith("pending-ack 1 has ended: stilltide.pending-ack-log/1@7")
    assert found.command == "stilltide repair pending-ack-log --cluster a"


def test_a_link_that_lags_is_worth_a_look():
    """It may catch up by itself."""
    late = link("b", A)
    late = late._replace(partitions=(late.partitions[0]._replace(lag=10_001),))
    found = only(replace(WELL, links={A: Aged((late,), NOW_MS)}))
    assert found.weight is Weight.WATCH
    assert not needs_person([found])


def test_a_group_that_cannot_advance_shows_why():
    """Only causes that do not pass by themselves."""
    stuck = group(B, standing=Standing.BEYOND_THE_END, why="beyond; set the group", urgent=True)
    found = only(replace(WELL, groups=Aged((group(A), stuck), NOW_MS)))
    assert (found.weight, found.cluster) == (Weight.ACT, "b")
    assert "billing on orders/0: beyond; set the group" in found.text
    assert found.command == "stilltide group describe orders billing"


def test_a_group_that_cannot_be_read_gives_one_line_for_all_clusters():
    """It is the same group."""
    unread = [group(it)._replace(problem="not read within 30 s") for it in (A, B)]
    found = only(replace(WELL, groups=Aged(tuple(unread), NOW_MS)))
    assert found.weight is Weight.WATCH


BAD_SNAPSHOT = SnapshotStatus(DATA, None, None, 1, 9, None, None, "it has parts and no end")
BAD_INDEX = IndexStatus(DATA, EndOffset(9), 0, 1, "of a former topic of this name")
ENDED = CoordinatorStatus(1, serving=False, problem="stilltide.txn-log/1@7: damaged")
REFUSED = "entries of stilltide.txn-log/1: cannot write (INVALID_TIMESTAMP): set the clock right"
HINDRANCE = EndedStatus(
    HINDERED,
    "answers of stilltide.txn-responses/0",
    NOW_MS - 12_000,
    "answers of stilltide.txn-responses/0: too few replicas (NOT_ENOUGH_REPLICAS): start brokers",
    "start brokers",
)
MISSING = HINDRANCE._replace(
    name="rights", why="Write on topic t is not allowed to User:w", hint="`stilltide acl print`"
)


@pytest.mark.parametrize(
    ("changed", "weight", "said", "command"),
    [
        (
            {"brokers": Aged(BrokersStatus(2, 3), NOW_MS)},
            Weight.ACT,
            "1 of 3 brokers are down",
            "topics check",
        ),
        (
            {"coordinators": Aged((ENDED,), NOW_MS)},
            Weight.ACT,
            "coordinator 1 does not serve: stilltide.txn-log/1@7: damaged",
            "coordinator stats",
        ),
        (
            {"coordinators": Aged((ENDED._replace(problem=""),), NOW_MS)},
            Weight.ACT,
            "coordinator 1 does not answer",
            "coordinator stats",
        ),
        (
            {"coordinators": Aged((ENDED._replace(problem=REFUSED),), NOW_MS)},
            Weight.ACT,
            f"coordinator 1 does not serve: {REFUSED}",
            "coordinator stats",
        ),
        ({"ended": Aged((HINDRANCE,), NOW_MS)}, Weight.ACT, HINDRANCE.why, "start brokers"),
        (
            {"ended": Aged((HINDRANCE._replace(hint=""),), NOW_MS)},
            Weight.ACT,
            HINDRANCE.why,
            "",
        ),
        ({"ended": Aged((MISSING,), NOW_MS)}, Weight.ACT, MISSING.why, "stilltide acl print"),
        (
            {"snapshots": Aged((BAD_SNAPSHOT,), NOW_MS)},
            Weight.ACT,
            "orders/0: readers cannot use the snapshot: it has parts and no end",
            "snapshot verify orders",
        ),
        (
            {"index": Aged((BAD_INDEX,), NOW_MS)},
            Weight.ACT,
            "the index cannot be used: of a former topic",
            "index drop orders",
        ),
        (
            {"index": Aged((BAD_INDEX._replace(problem="", lag=100_001),), NOW_MS)},
            Weight.WATCH,
            "100001 offsets behind",
            "index list",
        ),
        (
            {"snapshots": Aged(None, None, "not allowed to read", "grant Read")},
            Weight.WATCH,
            "snapshots cannot be read: not allowed to read",
            "grant Read",
        ),
        (
            {
                "workers": Aged(
                    (WorkerStatus("m", "h", "0.1.0", ()), WorkerStatus("n", "h", None, ())), NOW_MS
                )
            },
            Weight.WATCH,
            "several versions run: 0.1.0, unknown",
            "",
        ),
    ],
)
def test_each_part_of_a_cluster_has_its_faults(
    changed: dict[str, Any], weight: Weight, said: str, command: str
):
    """One line each, with the next step."""
    found = only(with_a(**changed))
    assert found.weight is weight
    assert said in found.text
    assert command in found.command


def test_hindered_work_has_not_ended():
    """C17: it is said as the worker says it; each hindrance has its line."""
    found = findings(with_a(ended=Aged((HINDRANCE, MISSING), NOW_MS)))
    assert [(it.text, it.command) for it in found] == [
        (HINDRANCE.why, HINDRANCE.hint),
        (MISSING.why, MISSING.hint),
    ]
    assert needs_person(found)
    assert not any("has ended" in it.text for it in found)


def test_a_hindered_coordinator_is_said_beside_what_else_is_hindered():
    """One worker is refused its entries, and another one its answers."""
    coordinator = CoordinatorStatus(1, serving=False, problem=REFUSED)
    changed = {
        "coordinators": Aged((coordinator,), NOW_MS),
        "ended": Aged((HINDRANCE,), NOW_MS),
    }
    assert [it.text for it in findings(with_a(**changed))] == [
        f"coordinator 1 does not serve: {REFUSED}",
        HINDRANCE.why,
    ]


def test_an_audit_that_is_invalid_or_old_is_a_finding():
    """An invalid one needs a person, an old one is worth a look."""
    audit = AuditStatus("invalid", 3, ("orders",), NOW_MS - 25 * 3_600_000)
    found = findings(replace(WELL, audits={"reports": Aged(audit, NOW_MS)}))
    assert [one.weight for one in found] == [Weight.ACT, Weight.WATCH]
    assert "3 findings" in found[0].text
    assert "1 d ago" in found[1].text


def test_what_needs_a_person_comes_first():
    """Whatever the order of clusters and parts."""
    status = with_a(index=Aged((BAD_INDEX._replace(problem="", lag=100_001),), NOW_MS))
    status = replace(status, links={A: Aged((stopped("b"),), NOW_MS)})
    assert [one.weight for one in findings(status)] == [Weight.ACT, Weight.WATCH]


def test_what_has_not_stood_for_a_while_needs_nobody_yet():
    """Of a silent coordinator: 10 s in every state; one good answer, and the time begins again."""
    standing = StandingFindings()
    silent = with_a(coordinators=Aged((CoordinatorStatus(1, serving=False),), NOW_MS))

    def at(second: int, status: SystemStatus) -> list[tuple[Weight, str]]:
        now_ms = NOW_MS + 1000 * second
        late = replace(status, now_ms=now_ms)
        return [(it.weight, it.shown(now_ms).rpartition("(")[2]) for it in standing.of(late)]

    assert at(0, silent) == [(Weight.WATCH, "since 0 ms)")]
    assert at(9, silent) == [(Weight.WATCH, "since 9 s)")]
    assert at(10, silent) == [(Weight.ACT, "since 10 s)")]
    assert at(11, WELL) == []
    assert at(12, silent) == [(Weight.WATCH, "since 0 ms)")]
    assert [it.shown(NOW_MS).rpartition("(")[2] for it in findings(silent)] == ["seen once)"]


def test_what_carries_its_age_is_judged_by_it_at_once():
    """An owner that has ended just now goes on at the next try; a cluster may answer the next."""
    young = with_a(ended=Aged((HINDRANCE._replace(ended_ms=NOW_MS - 3000),), NOW_MS))
    assert [it.weight for it in findings(young)] == [Weight.WATCH]
    assert StandingFindings().of(young) == findings(young)
    away = replace(cluster(B), brokers=AWAY, sign_ms=NOW_MS - 3000)
    status = replace(WELL, clusters=(cluster(A), away))
    assert [it.weight for it in findings(status)] == [Weight.WATCH]
    later = replace(status, now_ms=NOW_MS + 7000)
    assert [it.weight for it in findings(later)] == [Weight.ACT]


@pytest.mark.parametrize(
    ("age_ms", "shown"),
    [(0, "0 ms"), (999, "999 ms"), (61_000, "1 min"), (7_200_000, "2 h"), (90_000_000, "1 d")],
)
def test_an_age_is_shown_in_its_largest_unit(age_ms: int, shown: str):
    """Without a fraction."""
    assert shown_age(age_ms) == shown
