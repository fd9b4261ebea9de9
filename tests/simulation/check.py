"""Judges a history by what Kafka's users are promised; knows nothing of the system under test.

*Source*: the anomalies of Jepsen's tests of Kafka, Redpanda and Bufstream.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import NamedTuple

from tests.simulation.history import History, Place, Poll, Rewind, Transaction, Write

CARRIED_S = 15.0
"""Time within which the progress of a group reaches other clusters while nothing is wrong."""


class Anomaly(NamedTuple):
    """One thing that must not happen.

    Attributes:
        kind: the name of the anomaly.
        text: where it is, with values and offsets.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def check(history: History) -> list[Anomaly]:
    """All anomalies of a history; empty: it is sound."""
    return [
        *_stuck(history),
        *_offsets(history),
        *_final(history),
        *_polls(history),
        *_order_of_polls(history),
        *_acknowledged(history),
        *_dead_letters(history),
        *_told(history),
        *_prepared(history),
        *_rows(history),
    ]


def _stuck(history: History) -> list[Anomaly]:
    return [Anomaly("not finished", text) for text in history.unfinished] + [
        Anomaly("exit", f"{it.process} at {it.at_s:.3f} s: {it.why}") for it in history.exits
    ]


def _offsets(history: History) -> list[Anomaly]:
    """Each offset has one value, and each value one place."""
    anomalies: list[Anomaly] = []
    values: dict[tuple[Place, int], bytes] = {}
    places: dict[tuple[str, str, bytes], tuple[Place, int]] = {}
    seen = [(place, *it) for place, log in history.final.items() for it in log]
    seen += [(*at, value) for value, at in history.gone.items()]
    seen += [(history.place_of(it), it.offset, it.value) for it in history.polls]
    for place, offset, value in seen:
        other = values.setdefault((place, offset), value)
        at = f"{place}@{offset}"
        if other != value:
            anomalies.append(Anomaly("inconsistent offset", f"{at} is {other!r} and {value!r}"))
        before = places.setdefault((place.cluster, place.topic, value), (place, offset))
        if before != (place, offset):
            first = f"{before[0]}@{before[1]}"
            anomalies.append(Anomaly("duplicate", f"{value!r} is at {first} and {at}"))
    return anomalies + [
        Anomaly("duplicate", f"{value!r} is at {place}@{offset}, and was in a former topic")
        for place, log in history.final.items()
        for offset, value in log
        if value in history.gone
    ]


def _final(history: History) -> list[Anomaly]:
    """Committed writes and their copies are in the logs, aborted ones not, unknown ones as one."""
    anomalies: list[Anomaly] = []
    final: defaultdict[bytes, set[Place]] = defaultdict(set)
    for place, log in history.final.items():
        for _, value in log:
            final[value].add(place)
    known: set[bytes] = set()
    for txn in history.transactions:
        seen, missing = set[Write](), set[Write]()
        for written in txn.writes:
            known.add(written.value)
            wanted = {it for it in history.places_of(written.place) if it in history.final}
            places = final.get(written.value, set())
            anomalies += [
                Anomaly("elsewhere", f"{written.value!r} of {txn.name} is in {place}")
                for place in sorted(places - wanted)
            ]
            seen |= {Write(it, written.value) for it in places & wanted}
            lacking = {it for it in wanted - places if not history.may_lack(written, it)}
            missing |= {Write(it, written.value) for it in lacking}
            if places and lacking and txn.outcome != "aborted":
                copy = Write(min(lacking), written.value)
                kind = "lost copy" if written.place in places else "copy without a source"
                anomalies.append(Anomaly(kind, f"{copy} of {txn.name}"))
        if txn.outcome == "committed" and missing:
            anomalies.append(Anomaly("lost write", f"{min(missing)} of {txn.name}, committed"))
        if txn.outcome == "aborted" and seen:
            anomalies.append(
                Anomaly("aborted read", f"{min(seen)} of {txn.name}, in the final log")
            )
        if txn.outcome == "unknown" and seen and missing and not txn.is_plain:
            text = f"{txn.name} has {min(seen)} and not {min(missing)}"
            anomalies.append(Anomaly("torn transaction", text))
    return [
        *anomalies,
        *_logs(history, known),
        *_order_of_writes(history),
        *_order_of_copies(history),
    ]


def _logs(history: History, known: set[bytes]) -> list[Anomaly]:
    """Each log has known values only, in the order of its offsets."""
    anomalies: list[Anomaly] = []
    for place, log in history.final.items():
        anomalies += [
            Anomaly("from nowhere", f"{value!r} at {place}@{offset}")
            for offset, value in log
            if value not in known
        ]
        offsets = [offset for offset, _ in log]
        if offsets != sorted(set(offsets)):
            anomalies.append(Anomaly("unordered log", f"{place}: {offsets}"))
    return anomalies


def _order_of_copies(history: History) -> list[Anomaly]:
    """Copies have the order of their source."""
    anomalies: list[Anomaly] = []
    written = {write.value: write.place for txn in history.transactions for write in txn.writes}
    for copying in history.copies:
        for place, log in history.final.items():
            target = Place(*copying.target, place.partition)
            if (place.cluster, place.topic) != copying.source or target not in history.final:
                continue
            of_source = [it for _, it in log if not copying.written or written.get(it) == place]
            taken = set(of_source)
            of_target = [it for _, it in history.final[target] if it in taken]
            both = set(of_target)
            if of_target != [it for it in of_source if it in both]:
                anomalies.append(Anomaly("reordered copies", f"{target}: {of_target}"))
    return anomalies


def missing_copies(history: History) -> list[str]:
    """What a final log has, and another one does not have yet."""
    final = {(place, value) for place, log in history.final.items() for _, value in log}
    return [
        f"{write.value!r} is not in {place}"
        for txn in history.transactions
        for write in txn.writes
        if (write.place, write.value) in final
        for place in history.places_of(write.place)
        if (place, write.value) not in final and not history.may_lack(write, place)
    ]


def _order_of_writes(history: History) -> list[Anomaly]:
    """Writes of one transaction to one partition keep their order."""
    anomalies: list[Anomaly] = []
    offsets = {
        (place, value): offset for place, log in history.final.items() for offset, value in log
    }
    for txn in history.transactions:
        last: dict[Place, int] = {}
        for write in txn.writes:
            for place in history.places_of(write.place):
                offset = offsets.get((place, write.value))
                if offset is None:
                    continue
                if offset < last.get(place, -1):
                    anomalies.append(Anomaly("reordered write", f"{write} of {txn.name}"))
                last[place] = offset
    return anomalies


def _polls(history: History) -> list[Anomaly]:
    """Nothing of an aborted transaction was delivered, and nothing that is not in the logs."""
    anomalies: list[Anomaly] = []
    of: dict[bytes, Transaction] = {
        write.value: txn for txn in history.transactions for write in txn.writes
    }
    final = {(place, value) for place, log in history.final.items() for _, value in log}
    for poll in history.polls:
        txn = of.get(poll.value)
        if txn is not None and txn.outcome == "aborted":
            anomalies.append(Anomaly("aborted read", f"{poll} of {txn.name}"))
        elif poll.value in history.deleted or poll.value in history.gone:
            continue
        elif (poll.place, poll.value) not in final and poll.place in history.final:
            anomalies.append(Anomaly("dirty read", f"{poll}, which is not in the final log"))
    polled: defaultdict[str, set[bytes]] = defaultdict(set)
    for group, value in given_up(history):
        polled[group].add(value)
    topics: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for poll in history.polls:
        polled[poll.group].add(poll.value)
        topics[poll.group].add((poll.place.cluster, poll.place.topic))
    for group, values in polled.items():
        for place, log in history.final.items():
            if (place.cluster, place.topic) in topics[group]:
                anomalies += [
                    Anomaly("unseen", f"{value!r} at {place}@{offset} was never polled by {group}")
                    for offset, value in log
                    if value not in values
                ]
        anomalies += [
            Anomaly("unseen", f"{value!r} of {place}, deleted, was never polled by {group}")
            for value, places in history.deleted.items()
            for place in places
            if (place.cluster, place.topic) in topics[group] and value not in values
            if value in of and of[value].outcome == "committed"
        ]
    return anomalies


def _order_of_polls(history: History) -> list[Anomaly]:
    """Within one session of a member, a partition is polled in order and without holes.

    A message that comes a second time in a session was redelivered; redeliveries have no order.
    """
    anomalies: list[Anomaly] = []
    last: dict[tuple[str, str, int, Place], int] = {}
    had: set[tuple[str, str, int, Place, int]] = set()
    done = _done_at(history).keys() | given_up(history)
    for seek in history.seeks:
        last[seek.group, seek.member, seek.session, seek.place] = seek.offset - 1
    visible = {place: [offset for offset, _ in log] for place, log in history.final.items()}
    values = {place: dict(log) for place, log in history.final.items()}
    for poll in history.polls:
        place = history.place_of(poll)
        key = poll.group, poll.member, poll.session, place
        if (*key, poll.offset) in had:
            continue
        had.add((*key, poll.offset))
        before = last.get(key)
        last[key] = max(poll.offset, -1 if before is None else before)
        if before is None:
            continue
        if poll.offset <= before and poll.group in history.ordered_groups:
            anomalies.append(Anomaly("non-monotonic poll", f"{poll} after {before}"))
            continue
        if poll.group not in history.ordered_groups:
            continue
        skipped = [
            offset
            for offset in visible.get(place, ())
            if before < offset < poll.offset
            and (poll.group, values[place][offset]) not in done
            and (poll.group, values[place][offset]) not in history.asked
            and (*key, offset) not in had
        ]
        if skipped:
            anomalies.append(Anomaly("skipped poll", f"{poll} after {before}, not {skipped}"))
    return anomalies


def given_up(history: History) -> set[tuple[str, bytes]]:
    """Group and value of what nobody has to get since a member has gone on behind it."""
    if not history.seeks:
        return set()
    known = {place: [*log] for place, log in history.final.items()}
    for value, places in history.deleted.items():
        for place, offset in places.items():
            known.setdefault(place, []).append((offset, value))
    return {
        (seek.group, value)
        for seek in history.seeks
        for offset, value in known.get(seek.place, ())
        if seek.from_offset <= offset < seek.offset
    }


def _done_at(history: History, cluster: str = "") -> dict[tuple[str, bytes], list[float]]:
    """When acknowledgements of a message by a group were durable at the latest, on a cluster."""
    done: defaultdict[tuple[str, bytes], list[float]] = defaultdict(list)
    for mark in history.acknowledged:
        if cluster in {"", mark.cluster}:
            done[mark.group, mark.value].append(mark.at_s)
    for txn in history.transactions:
        if cluster not in {"", txn.cluster}:
            continue
        if txn.outcome == "committed" and txn.ended_s is not None:
            for group, value in txn.acknowledged:
                done[group, value].append(txn.ended_s)
    return done


def _rewinds(history: History) -> Callable[[Poll], float]:
    """Returns when a group, or the member itself, went back to a message before it was polled.

    An acknowledgement from before that does not count any more, if the group commits positions.
    """
    seeks = [it for it in history.seeks if it.group in history.ordered_groups]
    if not seeks:
        return lambda _: -math.inf
    offsets = {
        (place, value): offset for place, log in history.final.items() for offset, value in log
    }
    offsets |= {(it.place, it.value): it.offset for it in history.polls}
    for value, places in history.deleted.items():
        offsets |= {(place, value): offset for place, offset in places.items()}

    def at_s(poll: Poll) -> float:
        return max(
            (
                back.at_s
                for back in (*seeks, *history.rewinds)
                if back.group == poll.group and back.at_s <= poll.at_s
                if isinstance(back, Rewind) or back.member == poll.member
                if offsets.get((back.place, poll.value), -1) >= back.offset
            ),
            default=-math.inf,
        )

    return at_s


def _acknowledged(history: History) -> list[Anomaly]:
    """What is durably acknowledged is not delivered again to anybody who begins to read later.

    On another cluster, that holds for groups that commit positions, after a while, unless the group
    has gone back there: its progress on other clusters is then not carried over for a while. No
    message is acknowledged by two transactions, also if nobody was told that they have committed.
    """
    anomalies: list[Anomaly] = []
    clusters = {poll.place.cluster for poll in history.polls}
    here = {cluster: _done_at(history, cluster) for cluster in clusters}
    anywhere = _done_at(history)
    rewound_at_s = _rewinds(history)
    went_back = {(it.group, it.place) for it in history.rewinds}
    began: dict[tuple[str, str, int], float] = {}
    for poll in history.polls:
        began.setdefault((poll.group, poll.member, poll.session), poll.at_s)
        session_s = began[poll.group, poll.member, poll.session]
        key = poll.group, poll.value
        times_s = [*here[poll.place.cluster].get(key, ())]
        if poll.group in history.ordered_groups and (poll.group, poll.place) not in went_back:
            times_s += [max(it, history.calm_s) + CARRIED_S for it in anywhere.get(key, ())]
        if min(times_s, default=math.inf) >= min(session_s, poll.at_s):
            continue
        rewound_s = rewound_at_s(poll)
        at_s = min((it for it in times_s if it > rewound_s), default=math.inf)
        if at_s < min(session_s, poll.at_s):
            anomalies.append(
                Anomaly("acknowledged and delivered", f"{poll}, acknowledged at {at_s:.6f} s")
            )
    final = {value for log in history.final.values() for _, value in log}
    by_value: defaultdict[tuple[str, str, bytes], list[Transaction]] = defaultdict(list)
    for txn in history.transactions:
        is_visible = txn.outcome == "unknown" and any(it.value in final for it in txn.writes)
        if txn.outcome == "committed" or is_visible:
            for group, value in txn.acknowledged:
                by_value[txn.cluster, group, value].append(txn)
    anomalies += [
        Anomaly("acknowledged twice", f"{value!r} by {group} in {[it.name for it in txns]}")
        for (_, group, value), txns in by_value.items()
        if len(txns) > 1
    ]
    return anomalies


def _dead_letters(history: History) -> list[Anomaly]:
    """A message has one dead letter at most, and none once it is durably acknowledged."""
    anomalies: list[Anomaly] = []
    done = _done_at(history)
    for group, values in history.dead.items():
        polled = {it.value for it in history.polls if it.group == group}
        for value, count in sorted(Counter(values).items()):
            letter = f"{value!r} of {group}"
            if count > 1:
                anomalies.append(Anomaly("dead letter twice", letter))
            if (group, value) in done:
                anomalies.append(Anomaly("acknowledged and dead", letter))
            if value not in polled:
                anomalies.append(Anomaly("dead letter from nowhere", letter))
    return anomalies


def _told(history: History) -> list[Anomaly]:
    """Somebody who asks for an outcome is told what the application was, or what can be read."""
    anomalies: list[Anomaly] = []
    final = {value for log in history.final.values() for _, value in log}
    of = {it.name: it for it in history.transactions}
    for name, told in history.told:
        txn = of[name]
        seen = {it.value for it in txn.writes}
        seen &= final | history.deleted.keys() | history.gone.keys()
        is_other = txn.outcome not in {told, "unknown"}
        if is_other or (told == "aborted" and seen & final) or (told == "committed" and not seen):
            anomalies.append(Anomaly("wrong outcome", f"{name} is {told}, by one who asked"))
    return anomalies


def _prepared(history: History) -> list[Anomaly]:
    """What is prepared ends by a decision that somebody has asked for, by the first one, and soon.

    Nobody reads a record of it before.
    """
    anomalies = [Anomaly("undecided", text) for text in history.undecided]
    told: defaultdict[str, set[str]] = defaultdict(set)
    for name, outcome in history.told:
        told[name].add(outcome)
    anomalies += [
        Anomaly("contradicted", f"{name} is told to be committed, and to be aborted")
        for name, outcomes in told.items()
        if len(outcomes) > 1
    ]
    final = {value for log in history.final.values() for _, value in log}
    waiting: dict[bytes, Transaction] = {}
    for txn in history.transactions:
        if txn.prepared_s is None:
            continue
        waiting |= {it.value: txn for it in txn.writes}
        seen = _is_visible(history, txn, final)
        if not txn.has_row and seen is False and "aborted" not in txn.decisions:
            anomalies.append(
                Anomaly("ended by nobody", f"{txn.name} was prepared, and has aborted")
            )
    for poll in history.polls:
        txn = waiting.get(poll.value)
        if txn is not None and poll.given_s < (txn.may_commit_s or 0.0):
            anomalies.append(Anomaly("early read", f"{poll} of {txn.name}, not decided by then"))
    return anomalies


def _rows(history: History) -> list[Anomaly]:
    """A row stands in the database, if and only if the records of its transaction are visible."""
    anomalies: list[Anomaly] = []
    final = {value for log in history.final.values() for _, value in log}
    for txn in history.transactions:
        seen = _is_visible(history, txn, final) if txn.has_row else None
        if seen is None:
            continue
        if seen and txn.name not in history.rows:
            anomalies.append(Anomaly("records without a row", txn.name))
        if not seen and txn.name in history.rows:
            anomalies.append(Anomaly("row without records", txn.name))
    return anomalies


def _is_visible(history: History, txn: Transaction, final: set[bytes]) -> bool | None:
    """Whether records of a transaction can be read; None: they were deleted, whatever they were."""
    values = {it.value for it in txn.writes}
    if values & final:
        return True
    return False if values - history.deleted.keys() - history.gone.keys() else None
