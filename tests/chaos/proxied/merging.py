"""The lines that processes have told, as one history; judges a directory of them once more.

`python -m tests.chaos.proxied.merging DIRECTORY`
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.chaos.proxied.topics import FIRST, GROUPS, PUBLISHED, SECOND, TOPICS
from tests.simulation.check import check
from tests.simulation.history import (
    Acknowledged,
    Copying,
    Exit,
    History,
    Place,
    Poll,
    Transaction,
    Write,
)

PATTERN = "*.jsonl"
COPIES = (
    *(
        Copying((source, topic), (target, topic), written=True)
        for source, target in ((FIRST, SECOND), (SECOND, FIRST))
        for topic in TOPICS
    ),
    Copying((FIRST, "payments"), (FIRST, PUBLISHED), written=False),
)


class Merging:
    """Makes a history of lines, which may come file by file; a line is fed once.

    *Invariants*: lines of one file are fed in their order.

    Attributes:
        history: what was fed so far. Its times are seconds of `time.monotonic`.
        at: the cluster of each group that moves.
        moves: of each move, whether the operator was told that nothing is read again.
    """

    def __init__(self) -> None:
        # What is read on one cluster is known on another one after a move in order, not by itself.
        self.history = History(copies=COPIES, calm_s=math.inf)
        self.history.ordered_groups = {it.name for it in GROUPS if it.mode == "positions"}
        self.at = {it.name: FIRST for it in GROUPS if it.moves}
        self._transactions: dict[str, Transaction] = {}
        self._writes: dict[str, tuple[Transaction, int]] = {}
        self._sessions: set[tuple[str, str, int]] = set()
        self.moves: list[bool] = []
        self._carried: list[tuple[float, str, str]] = []

    def feed(self, line: Mapping[str, Any]) -> None:
        """One line."""
        at_s = line["at_ns"] / 1e9
        match line["what"]:
            case "begin" | "write" | "sent" | "commit" | "ended" | "acknowledge":
                self._of_transaction(line, at_s)
            case "poll":
                self._poll(line, at_s)
            case "handled":
                self.history.handled.update((line["group"], it.encode()) for it in line["values"])
            case "acknowledged":
                self.history.acknowledged += [
                    Acknowledged(at_s, line["group"], it.encode(), line["cluster"])
                    for it in line["values"]
                ]
            case "moved":
                self.at[line["group"]] = line["to"]
                self.moves.append(line["exact"])
                if line["exact"]:
                    self._carried.append((at_s, line["group"], line["to"]))
            case "exit":
                self.history.exits.append(Exit(at_s, line["process"], line["why"]))
            case "unfinished":
                self.history.unfinished.append(line["why"])
            case "final":
                place = Place(line["cluster"], line["topic"], line["partition"])
                self.history.final[place] = [(at, it.encode()) for at, it in line["log"]]

    def merged(self) -> History:
        """The history, with the polls of all members in the order of time."""
        history = self.history
        history.polls.sort(key=lambda it: it.at_s)
        # A position that was committed without an answer is carried over, too.
        history.asked |= {(it.group, it.value) for it in history.polls if it.group in self.at}
        own = list(history.acknowledged)  # not what a former move has carried: it doubled each time
        for moved_s, group, to in self._carried:
            history.acknowledged += [
                it._replace(at_s=moved_s, cluster=to)
                for it in own
                if it.group == group and it.at_s <= moved_s
            ]
        return history

    def _of_transaction(self, line: Mapping[str, Any], at_s: float) -> None:
        if line["what"] == "begin":
            txn = Transaction(line["txn"], at_s, is_plain=line.get("plain", False))
            self._transactions[txn.name] = txn
            self.history.transactions.append(txn)
            return
        if line["what"] == "sent":
            txn, number = self._writes[line["value"]]
            place = txn.writes[number].place._replace(partition=line["partition"])
            txn.writes[number] = txn.writes[number]._replace(place=place)
            return
        txn = self._transactions[line["txn"]]
        match line["what"]:
            case "write":
                place = Place(line["cluster"], line["topic"], line["partition"])
                self._writes[line["value"]] = txn, len(txn.writes)
                txn.writes.append(Write(place, line["value"].encode()))
            case "commit":
                txn.outcome = "unknown"
            case "acknowledge":
                txn.acknowledged += [(line["group"], it.encode()) for it in line["values"]]
            case _:
                txn.outcome, txn.ended_s = line["outcome"], at_s
                if txn.outcome == "committed":
                    self.history.handled.update(txn.acknowledged)

    def _poll(self, line: Mapping[str, Any], at_s: float) -> None:
        session = line["group"], line["member"], line["session"]
        if session not in self._sessions:
            # The checker takes the first poll of a session for its begin.
            self._sessions.add(session)
            at_s = min(at_s, line["since_ns"] / 1e9)
        place = Place(line["cluster"], line["topic"], line["partition"])
        self.history.polls.append(
            Poll(at_s, *session, place, line["offset"], line["value"].encode())
        )


class Files:
    """The files of a directory, read as they grow.

    Args:
        directory: of the files; further ones may come.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def more(self) -> Iterable[Mapping[str, Any]]:
        """The lines since the last call, each file in its order."""
        for path in sorted(self._directory.glob(PATTERN)):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is just being written, or its process was killed
                    self._read[path] = self._read.get(path, 0) + len(line)
                    yield json.loads(line)


def merging_of(directory: Path) -> Merging:
    """All that the files of a directory tell."""
    merging = Merging()
    for line in Files(directory).more():
        merging.feed(line)
    return merging


def behind(history: History, at: Mapping[str, str]) -> list[str]:
    """What groups have not handled yet of the final logs, each where it reads."""
    unknown = {
        key for txn in history.transactions for key in txn.acknowledged if txn.outcome == "unknown"
    }
    handled = history.handled | unknown
    return [
        f"{group.name} has not handled {value!r} of {place}"
        for group in GROUPS
        for place, log in history.final.items()
        if place.topic in group.topics and place.cluster == at.get(group.name, FIRST)
        for _, value in log
        if (group.name, value) not in handled
    ]


if __name__ == "__main__":
    anomalies = check(merging_of(Path(sys.argv[1])).merged())
    sys.stdout.write("".join(f"{it}\n" for it in anomalies) + f"{len(anomalies)} anomalies\n")
    sys.exit(bool(anomalies))
