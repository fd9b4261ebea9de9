"""Processor time of processes by thread."""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ThreadTimes = Mapping[tuple[str, str], float]
"""Seconds of processor time, by process and by the name of a thread without its number."""


def thread_times(pids: Mapping[str, int], *, java: str = "broker") -> ThreadTimes:
    """What the threads of these processes have used so far.

    Args:
        pids: the processes, by what the report calls them.
        java: how the names of JVMs begin. The main thread of any other process is called `loop`.
    """
    used: defaultdict[tuple[str, str], float] = defaultdict(float)
    for process, pid in pids.items():
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                name = (task / "comm").read_text().strip()
                nanoseconds = int((task / "schedstat").read_text().split()[0])
            except FileNotFoundError:  # the thread has ended
                continue
            is_loop = task.name == str(pid) and not process.startswith(java)
            thread = "loop" if is_loop else re.sub(r"[-#:]?\d+$", "", name)
            used[process, thread] += nanoseconds / 1e9
    return used


def thread_rows(columns: Mapping[str, ThreadTimes], least: float) -> list[dict[str, Any]]:
    """A row for each kind of thread that uses at least `least` in a column, and for the others."""
    rows: list[dict[str, Any]] = []
    places = sorted({at for used in columns.values() for at in used})
    for process in dict.fromkeys(place[0] for place in places):
        others = dict.fromkeys(columns, 0.0)
        for at in (place for place in places if place[0] == process):
            spent = {name: used.get(at, 0.0) for name, used in columns.items()}
            if max(spent.values()) >= least:
                rows.append({"process": process, "thread": at[1], **spent})
            else:
                others = {name: others[name] + spent[name] for name in columns}
        rows.append({"process": process, "thread": "others", **others})
    totals = {name: sum(used.values()) for name, used in columns.items()}
    return [*rows, {"process": "all", "thread": "", **totals}]
