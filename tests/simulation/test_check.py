"""The checker finds each anomaly in a history that has it, and nothing in a sound one."""

from collections.abc import Callable

import pytest

from tests.simulation.check import check, given_up, missing_copies
from tests.simulation.history import (
    Acknowledged,
    Copying,
    Exit,
    History,
    Place,
    Poll,
    Rewind,
    Seek,
    Transaction,
    Write,
)

P = Place("a", "orders", 0)
Q = Place("a", "orders", 1)


def txn(name: str, *writes: tuple[Place, bytes], outcome: str = "committed") -> Transaction:
    """A transaction that has ended at 5 s."""
    made = Transaction(name, 1.0, [Write(*it) for it in writes])
    made.outcome, made.ended_s = outcome, 5.0  # pyright: ignore[reportAttributeAccessIssue]
    return made


def poll(value: bytes, offset: int, at_s: float = 6.0, session: int = 1, member: str = "m") -> Poll:
    """A message of partition P that a member of group g got."""
    return Poll(at_s, "g", member, session, P, offset, value)


def sound() -> History:
    """Two committed transactions, an aborted and an unknown one, read by one group."""
    history = History()
    history.transactions = [
        txn("one", (P, b"1"), (Q, b"2")),
        txn("two", (P, b"3")),
        txn("three", (P, b"4"), outcome="aborted"),
        txn("four", (P, b"5"), (Q, b"6"), outcome="unknown"),
    ]
    history.final = {P: [(0, b"1"), (1, b"3")], Q: [(0, b"2")]}
    history.polls = [poll(b"1", 0), poll(b"3", 1), Poll(6.0, "g", "m", 1, Q, 0, b"2")]
    history.ordered_groups = {"g"}
    return history


def kinds(history: History) -> set[str]:
    """The kinds of anomalies of a history."""
    return {it.kind for it in check(history)}


def test_nothing_is_found_in_a_sound_history():
    """Redeliveries, unknown outcomes that are whole, and acknowledged messages are no anomaly."""
    history = sound()
    history.polls += [poll(b"1", 0, at_s=7.0), poll(b"1", 0, at_s=8.0, session=2)]
    history.acknowledged = [Acknowledged(9.0, "g", b"1")]
    assert check(history) == []


def test_a_dead_letter_and_a_right_answer_are_no_anomaly():
    """A message that was not acknowledged may have a dead letter; outcomes may be asked for."""
    history = sound()
    history.dead = {"g": [b"1"]}
    history.told = [("one", "committed"), ("three", "aborted"), ("four", "aborted")]
    assert check(history) == []


def test_an_unknown_transaction_may_be_visible_as_a_whole():
    """A commit without an answer may have taken effect."""
    history = sound()
    history.final[P].append((2, b"5"))
    history.final[Q].append((1, b"6"))
    history.polls += [poll(b"5", 2), Poll(6.0, "g", "m", 1, Q, 1, b"6")]
    assert check(history) == []


def test_what_retention_has_deleted_is_not_missing():
    """A deleted record that every group had read is no lost write, and no dirty read."""
    history = sound()
    del history.final[P][0]
    history.deleted = {b"1": {P: 0}}
    assert check(history) == []


def remade() -> History:
    """Before the records of the sound history, their topic had another one, and was made again."""
    history = sound()
    history.transactions.append(txn("zero", (P, b"0")))
    history.gone = {b"0": (Place("a", "orders until 1", 0), 0)}
    return history


def test_a_topic_that_was_made_again_has_other_records_at_its_offsets():
    """What the former topic held is not missing, and may have been read, or not."""
    history = remade()
    assert check(history) == []
    history.polls.insert(0, poll(b"0", 0, at_s=3.0))
    assert check(history) == []


def test_a_record_of_a_former_topic_is_not_in_the_new_one():
    """A write that both topics have is a duplicate."""
    history = remade()
    history.final[P].append((2, b"0"))
    assert "duplicate" in kinds(history)


def lost(history: History) -> None:
    """A committed write is in no log."""
    del history.final[P][1]


def aborted(history: History) -> None:
    """An aborted write is in the log."""
    history.final[P].append((2, b"4"))
    history.polls.append(poll(b"4", 2))


def aborted_poll(history: History) -> None:
    """An aborted write was delivered."""
    history.polls.append(poll(b"4", 2))


def torn(history: History) -> None:
    """One write of an unknown transaction is in the log, the other is not."""
    history.final[P].append((2, b"5"))
    history.polls.append(poll(b"5", 2))


def doubled(history: History) -> None:
    """One write is at two offsets."""
    history.final[P].append((2, b"1"))


def inconsistent(history: History) -> None:
    """A member got another value at an offset than is in the log."""
    history.polls.append(poll(b"x", 0))


def elsewhere(history: History) -> None:
    """A write is in another partition than it was sent to."""
    history.final = {P: [(0, b"1"), (1, b"3"), (2, b"2")], Q: []}
    history.polls = [poll(b"1", 0), poll(b"3", 1), poll(b"2", 2)]


def unseen(history: History) -> None:
    """A record was never delivered to a group that reads its topic."""
    del history.polls[1]


def deleted_unseen(history: History) -> None:
    """Retention has deleted a record that a group had never got."""
    del history.final[P][0]
    del history.polls[0]
    history.deleted = {b"1": {P: 0}}


def skipped(history: History) -> None:
    """A member passes over a record within a session."""
    history.final[P].append((2, b"9"))
    history.transactions.append(txn("nine", (P, b"9")))
    history.polls = [*history.polls[:1], poll(b"9", 2), *history.polls[2:], poll(b"3", 1, 9.0, 2)]


def backwards(history: History) -> None:
    """A member gets an earlier record, for the first time, after a later one."""
    history.polls[0], history.polls[1] = history.polls[1], history.polls[0]


def dirty(history: History) -> None:
    """A member got a record of an unknown transaction that is not visible in the end."""
    history.polls.append(poll(b"5", 2))


def reordered(history: History) -> None:
    """Two writes of a transaction to one partition changed places."""
    history.transactions.append(txn("five", (P, b"7"), (P, b"8")))
    history.final[P] += [(2, b"8"), (3, b"7")]
    history.polls += [poll(b"8", 2), poll(b"7", 3)]


def nowhere(history: History) -> None:
    """A record that nobody wrote."""
    history.final[P].append((2, b"?"))
    history.polls.append(poll(b"?", 2))


def delivered_again(history: History) -> None:
    """A member whose session begins after a durable acknowledgement gets the message."""
    history.acknowledged = [Acknowledged(7.0, "g", b"1")]
    history.polls.append(poll(b"1", 0, at_s=8.0, session=2))


def acknowledged_twice(history: History) -> None:
    """Two committed transactions acknowledge one message."""
    for one in history.transactions[:2]:
        one.acknowledged.append(("g", b"1"))


def acknowledged_unknown(history: History) -> None:
    """So do two of which one has become visible without an answer."""
    history.final[P].append((2, b"5"))
    history.final[Q].append((1, b"6"))
    history.polls += [poll(b"5", 2), Poll(6.0, "g", "m", 1, Q, 1, b"6")]
    for one in (history.transactions[0], history.transactions[3]):
        one.acknowledged.append(("g", b"1"))


def dead_twice(history: History) -> None:
    """A message has two dead letters."""
    history.dead = {"g": [b"1", b"1"]}


def acknowledged_and_dead(history: History) -> None:
    """A message that was durably acknowledged has a dead letter."""
    history.acknowledged = [Acknowledged(9.0, "g", b"1")]
    history.dead = {"g": [b"1"]}


def dead_from_nowhere(history: History) -> None:
    """A dead letter of a message that the group never got."""
    history.dead = {"g": [b"4"]}


def wrong_outcome(history: History) -> None:
    """Somebody who asks later is told another outcome than the application was."""
    history.told = [("one", "aborted")]


def unseen_outcome(history: History) -> None:
    """Somebody is told that a transaction has committed of which nothing is visible."""
    history.told = [("four", "committed")]


def stuck(history: History) -> None:
    """The world did not come to its end."""
    history.unfinished.append("waited for the clients")


def ended(history: History) -> None:
    """A process ended by an error."""
    history.exits.append(Exit(1.0, "worker-0.1", "KeyError()"))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lost, "lost write"),
        (aborted, "aborted read"),
        (aborted_poll, "aborted read"),
        (torn, "torn transaction"),
        (doubled, "duplicate"),
        (inconsistent, "inconsistent offset"),
        (elsewhere, "elsewhere"),
        (unseen, "unseen"),
        (deleted_unseen, "unseen"),
        (skipped, "skipped poll"),
        (backwards, "non-monotonic poll"),
        (dirty, "dirty read"),
        (reordered, "reordered write"),
        (nowhere, "from nowhere"),
        (delivered_again, "acknowledged and delivered"),
        (acknowledged_twice, "acknowledged twice"),
        (acknowledged_unknown, "acknowledged twice"),
        (dead_twice, "dead letter twice"),
        (acknowledged_and_dead, "acknowledged and dead"),
        (dead_from_nowhere, "dead letter from nowhere"),
        (wrong_outcome, "wrong outcome"),
        (unseen_outcome, "wrong outcome"),
        (stuck, "not finished"),
        (ended, "exit"),
    ],
)
def test_each_anomaly_is_found(spoil: Callable[[History], None], kind: str):
    """A sound history that is spoilt in one way has an anomaly of that kind."""
    history = sound()
    spoil(history)
    assert kind in kinds(history)


A = Place("a", "orders", 0)
B = Place("b", "orders", 0)
PUBLISHED = Place("b", "published", 0)


def copied() -> History:
    """Two clusters that copy each other's records, and a publish on the second one."""
    history = History(
        copies=(
            Copying(("a", "orders"), ("b", "orders"), written=True),
            Copying(("b", "orders"), ("a", "orders"), written=True),
            Copying(("b", "orders"), ("b", "published"), written=False),
        )
    )
    history.transactions = [txn("one", (A, b"1"), (A, b"2")), txn("two", (B, b"3"))]
    history.final = {
        A: [(0, b"1"), (1, b"3"), (2, b"2")],
        B: [(0, b"3"), (1, b"1"), (2, b"2")],
        PUBLISHED: [(0, b"3"), (1, b"1"), (2, b"2")],
    }
    return history


def test_sound_copies_have_no_anomaly():
    """Records of two clusters may interleave as they like; each keeps the order of its source."""
    history = copied()
    assert check(history) == []
    assert missing_copies(history) == []


def test_retention_deletes_records_and_copies():
    """A copy that was deleted is no lost copy; a record that was deleted may have no copies."""
    history = copied()
    del history.final[B][1]  # the copy of the first record
    assert "lost copy" in kinds(history)
    assert missing_copies(history)
    history.deleted = {b"1": {B: 1}}
    assert check(history) == missing_copies(history) == []
    del history.final[A][0]
    history.deleted = {b"1": {A: 0}}
    assert check(history) == missing_copies(history) == []


def lost_copy(history: History) -> None:
    """A copy is missing."""
    del history.final[B][2], history.final[PUBLISHED][2]


def doubled_copy(history: History) -> None:
    """A record was copied twice."""
    history.final[B].append((3, b"2"))


def copied_back(history: History) -> None:
    """A copy was copied to where it came from."""
    history.final[A].append((3, b"1"))


def swapped_copies(history: History) -> None:
    """Copies have another order than their source."""
    history.final[B] = [(0, b"3"), (1, b"2"), (2, b"1")]
    history.final[PUBLISHED] = list(history.final[B])


def swapped_publish(history: History) -> None:
    """The published topic has another order."""
    history.final[PUBLISHED] = [(0, b"1"), (1, b"3"), (2, b"2")]


def no_source(history: History) -> None:
    """A copy is there, and the record is not."""
    del history.final[A][0]


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lost_copy, "lost copy"),
        (doubled_copy, "duplicate"),
        (copied_back, "duplicate"),
        (swapped_copies, "reordered copies"),
        (swapped_publish, "reordered copies"),
        (no_source, "copy without a source"),
    ],
)
def test_each_anomaly_of_copies_is_found(spoil: Callable[[History], None], kind: str):
    """One change to a sound history, and the checker names it."""
    history = copied()
    spoil(history)
    assert kind in kinds(history)


def moved(polled_s: float, *, ordered: bool = True) -> History:
    """A group acknowledges on cluster a, and polls the copy on cluster b."""
    history = copied()
    history.calm_s = 20.0
    history.ordered_groups = {"g"} if ordered else set()
    history.polls = [
        Poll(6.0, "g", "m", 1, A, 0, b"1"),
        Poll(6.1, "g", "m", 1, A, 1, b"3"),
        Poll(6.2, "g", "m", 1, A, 2, b"2"),
        Poll(polled_s, "g", "n", 1, B, 1, b"1"),
    ]
    history.acknowledged = [Acknowledged(7.0, "g", b"1", "a")]
    return history


def test_a_group_may_read_again_on_another_cluster_until_its_progress_has_arrived():
    """Progress takes a while to another cluster, also after the last fault."""
    assert check(moved(30.0)) == []


def test_what_a_group_has_acknowledged_long_ago_is_not_read_on_another_cluster():
    """The progress of a group that commits positions is exact on all clusters."""
    history = moved(36.0)
    assert kinds(history) == {"acknowledged and delivered"}
    history.acknowledged.append(Acknowledged(37.0, "g", b"1", "b"))
    assert kinds(history) == {"acknowledged and delivered"}


def test_a_group_that_has_gone_back_on_a_cluster_may_read_again_there():
    """The group is left alone there, whatever it acknowledges elsewhere."""
    history = moved(36.0)
    history.rewinds = [Rewind(1.0, "g", B, 0)]
    assert check(history) == []
    history.acknowledged.append(Acknowledged(9.0, "g", b"1", "b"))
    assert kinds(history) == {"acknowledged and delivered"}


def test_single_acknowledgements_stay_on_their_cluster():
    """Only the position of a group is carried over."""
    assert check(moved(36.0, ordered=False)) == []


def test_a_group_that_returns_does_not_read_again():
    """On its own cluster an acknowledgement holds at once."""
    history = moved(30.0)
    history.polls.append(Poll(31.0, "g", "m", 2, A, 0, b"1"))
    assert kinds(history) == {"acknowledged and delivered"}


def sought(offset: int, *, from_offset: int = 2) -> History:
    """A member has read to the end and committed, goes elsewhere, and then commits at once."""
    history = sound()
    history.acknowledged = [Acknowledged(7.0, "g", it.value) for it in history.polls]
    history.seeks = [Seek(8.0, "g", "m", 2, P, from_offset, offset)]
    history.rewinds = [Rewind(8.5, "g", P, offset)]
    return history


def test_a_group_may_read_again_what_a_member_has_gone_back_to():
    """The member itself at once, and every other one after the new position was committed."""
    history = sought(1)
    history.polls += [poll(b"3", 1, 8.2, 2), poll(b"3", 1, 9.0, 1, "n")]
    assert check(history) == []


def test_what_a_member_has_given_up_need_not_be_read():
    """A record that nobody has read is given up by a member that goes on behind it."""
    history = sought(3)
    history.transactions.append(txn("nine", (P, b"9"), (P, b"10")))
    history.final[P] += [(2, b"9"), (3, b"10")]
    history.polls.append(poll(b"10", 3, 9.0, 2))
    assert given_up(history) == {("g", b"9")}
    assert check(history) == []


def below_its_seek(history: History) -> None:
    """The group gets what lies below the offset to which a member went back."""
    history.polls.append(poll(b"1", 0, 9.0, 1, "n"))


def before_the_commit(history: History) -> None:
    """Another member goes back before the new position was committed."""
    history.rewinds.clear()
    history.polls.append(poll(b"3", 1, 9.0, 1, "n"))


def after_another_commit(history: History) -> None:
    """The group gets a message again after the message was committed once more."""
    history.acknowledged.append(Acknowledged(9.0, "g", b"3"))
    history.polls.append(poll(b"3", 1, 9.5, 1, "n"))


@pytest.mark.parametrize("spoil", [below_its_seek, before_the_commit, after_another_commit])
def test_a_seek_back_is_no_pretext(spoil: Callable[[History], None]):
    """What a seek does not concern is delivered once."""
    history = sought(1)
    spoil(history)
    assert kinds(history) == {"acknowledged and delivered"}


def test_a_member_goes_on_where_it_has_asked_to():
    """The first message after a seek is the first one from the offset on."""
    history = sound()
    history.transactions.append(txn("nine", (P, b"9"), (P, b"10")))
    history.final[P] += [(2, b"9"), (3, b"10")]
    history.seeks = [Seek(8.0, "g", "m", 2, P, 2, 2)]
    history.polls += [poll(b"10", 3, 9.0, 2), poll(b"9", 2, 9.5, 3)]
    assert kinds(history) == {"skipped poll"}
    history.polls[-2] = poll(b"3", 1, 9.0, 2)
    assert kinds(history) == {"unseen", "non-monotonic poll"}


def prepared(outcome: str, *decisions: str) -> History:
    """A transaction that was prepared at 2 s, decided and not, and ended at 5 s."""
    history = sound()
    made = txn("five", (P, b"7"), outcome=outcome)
    made.prepared_s = 2.0
    for decision in decisions:
        made.asked(decision, 4.0)  # pyright: ignore[reportArgumentType]
    made.outcome = outcome  # pyright: ignore[reportAttributeAccessIssue]
    history.transactions.append(made)
    if outcome == "committed":
        history.final[P].append((2, b"7"))
        history.polls.append(poll(b"7", 2)._replace(given_s=4.5))
    return history


def test_what_is_prepared_ends_by_a_decision():
    """Decided as somebody has asked, and read afterwards."""
    assert check(prepared("committed", "committed")) == []
    assert check(prepared("aborted", "aborted")) == []
    assert kinds(prepared("aborted")) == {"ended by nobody"}


def test_a_record_is_read_before_it_is_decided():
    """Readers wait at what is prepared."""
    history = prepared("committed", "committed")
    history.polls[-1] = history.polls[-1]._replace(given_s=3.5)
    assert kinds(history) == {"early read"}


def test_a_decision_is_contradicted():
    """Two programs are told the opposite: one of them is told what does not stand."""
    history = prepared("committed", "committed", "aborted")
    history.told = [("five", "committed"), ("five", "aborted")]
    assert kinds(history) == {"contradicted", "wrong outcome"}


def test_what_stays_prepared_is_undecided():
    """The world says what is prepared after everything has been well for a while."""
    history = sound()
    history.undecided = ["0:17"]
    assert kinds(history) == {"undecided"}


def test_a_row_and_its_records_stand_together():
    """Both or neither; where retention has deleted the records, nobody can tell."""
    history = prepared("committed", "committed")
    history.transactions[-1].has_row = True
    assert kinds(history) == {"records without a row"}
    history.rows = {"five": 4.2}
    assert check(history) == []
    history = prepared("aborted")
    history.transactions[-1].has_row = True
    assert check(history) == []
    history.rows = {"five": 4.2}
    assert kinds(history) == {"row without records"}
    history.deleted = {b"7": {P: 2}}
    assert check(history) == []
