"""Watches the tasks of a session: shows them, and ends jobs that no executor takes up.

Spark itself waits for executors without end, and says so only in its log.

*Invariants*: a job is ended only if no task of any stage runs, none has ended since the wait began,
and the wait is over; the reason, with what Spark logged, is in the job's error.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext

from stilltide.connectors.spark.errors import NO_EXECUTOR
from stilltide.connectors.spark.options import SparkOptions, TaskCounts, is_local

_POLL_S = 0.25
_LOGGED_CHARS_MAX = 900
_TELLING = ("has not accepted any resources", "Lost executor", " removed: ", "Failed to connect")
"""Parts of the lines in which Spark's driver says why no task runs."""


@contextmanager
def watched(context: SparkContext, options: SparkOptions, log_path: Path | None) -> Generator[None]:
    """Watches the session while the block runs, if there is anything to watch.

    Args:
        context: the session's context.
        options: with a view, or of a session on a cluster.
        log_path: the log of the driver's JVM, if it is a file.
    """
    on_cluster = not is_local(str(context.master))
    if not on_cluster and options.view is None:
        yield
        return
    wait_s = options.executor_wait_s if on_cluster else float("inf")
    ended = Event()
    watch = _Watch(context, options, wait_s, lambda: _logged(log_path))
    thread = Thread(target=watch.run, args=(ended,), name="spark-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Watch:
    def __init__(
        self,
        context: SparkContext,
        options: SparkOptions,
        wait_s: float,
        logged: Callable[[], str],
    ) -> None:
        self._context = context
        self._view = options.view
        self._wait_s = wait_s
        self._logged = logged
        self._shown = TaskCounts(0, 0, 0, 0)
        self._waiting: tuple[TaskCounts, float] | None = None

    def run(self, ended: Event) -> None:
        """Watches until `ended` is set, or the JVM is gone."""
        while not ended.wait(_POLL_S):
            try:
                self._look()
            except (Py4JError, OSError):  # the JVM is gone; whoever uses the session is told
                return

    def _look(self) -> None:
        counts = self._counts()
        if counts != self._shown:
            self._shown = counts
            if self._view is not None:
                self._view.tasks(counts)
        if not counts.stages or counts.running:
            self._waiting = None
        elif self._waiting is None or self._waiting[0] != counts:
            self._waiting = counts, time.monotonic()
        elif time.monotonic() - self._waiting[1] > self._wait_s:
            self._waiting = None
            self._end_jobs()

    def _counts(self) -> TaskCounts:
        tracker = self._context.statusTracker()
        found = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        stages = [one for one in found if one is not None]
        return TaskCounts(
            len(stages),
            sum(one.numCompletedTasks for one in stages),
            sum(one.numActiveTasks for one in stages),
            sum(one.numTasks for one in stages),
        )

    def _end_jobs(self) -> None:
        host = self._context.getConf().get("spark.driver.host")
        waited = f"within {self._wait_s:g} s; the driver's address is {host}"
        reason = f"{NO_EXECUTOR} {waited}{self._logged()}"
        jobs: Any = self._context._jsc  # noqa: SLF001 - PySpark's own form takes no reason
        for number in self._context.statusTracker().getActiveJobsIds():
            jobs.sc().cancelJob(number, reason)


def _logged(log_path: Path | None) -> str:
    """What Spark logged about executors, each line once; on one line."""
    if log_path is None or not log_path.exists():
        return ""
    lines = log_path.read_text(errors="replace").splitlines()
    # A line begins with date, level and logger, up to the first `: `.
    found = [line.partition(": ")[2] for line in lines if any(part in line for part in _TELLING)]
    return f"; Spark says: {' | '.join(dict.fromkeys(found))}"[:_LOGGED_CHARS_MAX] if found else ""
