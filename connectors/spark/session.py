"""A Spark session for reading Kafka: on this machine, or on a cluster.

Jars and JVM options have an effect only before the process's first session starts, so all of them
are set in one place and passed on the JVM's command line. A process that spark-submit started has
its JVM already, with master and settings; these are kept.

*Invariants*: nothing is written to the current directory; the log of a JVM of ours goes to a file,
whose last lines are in the error when the JVM does not start; the JVM dies with this process. No
secret is in the JVM's arguments, nor in its environment: that has none of Stilltide's variables,
which other processes of the user could read. The options of Kafka reach the JVM over its socket.

Refuses to make a second session: an active session is used instead. Refuses Spark Connect.

Whether the JVM of a Spark session lives.

Python learns of a JVM's end only when it asks the JVM for something, and py4j's own error is a
stack.

*Invariants*: a JVM that has ended is a `FatalError` of one sentence.

Watches the tasks of a session: shows them, and ends jobs that no executor takes up.

Spark itself waits for executors without end, and says so only in its log.

*Invariants*: a job is ended only if no task of any stage runs, none has ended since the wait began,
and the wait is over; the reason, with what Spark logged, is in the job's error.
"""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stilltide.connectors.errors import FatalError
from stilltide.connectors.local.java import find_java
from stilltide.connectors.spark.errors import NO_EXECUTOR, check_argument, connect_error
from stilltide.connectors.spark.options import (
    LOCAL_MASTER,
    SparkOptions,
    TaskCounts,
    arguments,
    asked,
    defaults,
    environment,
    is_local,
    jars_to_add,
    launched,
)

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
        infos = map(tracker.getStageInfo, tracker.getActiveStageIds())
        stages = [info for info in infos if info is not None]
        return TaskCounts(
            len(stages),
            sum(stage.numCompletedTasks for stage in stages),
            sum(stage.numActiveTasks for stage in stages),
            sum(stage.numTasks for stage in stages),
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
    reasons = [line.partition(": ")[2] for line in lines if any(part in line for part in _TELLING)]
    return (
        f"; Spark says: {' | '.join(dict.fromkeys(reasons))}"[:_LOGGED_CHARS_MAX] if reasons else ""
    )


_LOG_TAIL_LINES = 15
_OURS = "STILLTIDE_"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Variable that spark-submit sets for the Python process that it starts."""

_REMOTE = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_launching = threading.Lock()

__all__ = ["SparkOptions", "spark_session"]


@contextmanager
def spark_session(options: SparkOptions) -> Generator[SparkSession]:
    """The process's active session, or a new one that ends with the block.

    An active session is used as it is, without regard to `options`, and is left running. In a
    process that spark-submit started, the new session has spark-submit's master and settings.

    Raises:
        JavaMissingError: no Java that runs Spark was found.
        FatalError: the JVM does not start, and the error contains the last lines of its log; or the
            session would be one of Spark Connect.
    """
    check_argument("options", options, "SparkOptions", "master")
    _refuse_connect(options)
    # getActiveSession() knows the calling thread's session only, and any thread may call this.
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - the process-wide question has no public form
        yield SparkSession.builder.getOrCreate()
        return
    scratch = Path(tempfile.mkdtemp(prefix="stilltide-spark-"))
    log_path = None if _SUBMITTED in os.environ else scratch / "jvm.log"
    try:
        session = _start(options, scratch, log_path)
        try:
            if options.view is not None and options.ui:
                options.view.serving(str(session.sparkContext.uiWebUrl))
            with watched(session.sparkContext, options, log_path):
                yield session
        finally:
            session.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _refuse_connect(options: SparkOptions) -> None:
    master = asked(options).get("spark.master", "")
    settings = "spark.remote" in options.settings or master.startswith("sc://")
    if settings or any(os.environ.get(name) for name in _REMOTE):
        raise connect_error()


def _start(options: SparkOptions, scratch: Path, log_path: Path | None) -> SparkSession:
    # Spark's launcher reads only JAVA_HOME, and accepts a Java that is too old.
    os.environ["JAVA_HOME"] = str(find_java().home)
    try:
        gateway = SparkContext._gateway  # noqa: SLF001 - a stopped session leaves its JVM, not public
        if gateway is None:
            gateway = _connect() if log_path is None else _launch(options, log_path)
        conf = _conf(options, scratch, gateway, is_submitted=log_path is None)
        SparkContext(conf=conf, gateway=gateway)
        return SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        if (started := SparkContext._active_spark_context) is not None:  # noqa: SLF001 - as above
            started.stop()
        raise FatalError(
            "spark does not start",
            detail="\n".join(_short([*str(error).splitlines()[:2], *_tail(log_path)])),
            hint="spark runs on Java 17 or 21 and needs free memory for its heap, "
            f"{options.driver_memory}; a cluster's master must answer",
        ) from error


class _Popen(subprocess.Popen[bytes]):
    """A process that inherits no variable of Stilltide, which may be a secret.

    Attributes:
        added: variables that the process gets unless this one has them.
    """

    added: Mapping[str, str] = {}

    def __init__(self, args: Any, **options: Any) -> None:
        env = self.added | (options.pop("env", None) or os.environ)
        env = {name: value for name, value in env.items() if not name.startswith(_OURS)}
        super().__init__(args, env=env, **options)


def _connect() -> Any:
    """The JVM that spark-submit started."""
    return java_gateway.launch_gateway()


def _launch(options: SparkOptions, log_path: Path) -> Any:
    """A JVM of ours."""
    # Sources and functions in Python would run on the first python3 of the PATH.
    python = options.settings.get("spark.pyspark.python", sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", python)
    conf = SparkConf(loadDefaults=False)
    for name, value in arguments(options).items():
        conf.set(name, value)
    # PySpark's launcher passes this process's whole environment on, whatever it is given.
    with _launching, log_path.open("wb") as log:
        launcher: Any = java_gateway
        before = launcher.Popen
        launcher.Popen = type("_Popen", (_Popen,), {"added": environment(options)})
        try:
            # The JVM warns on stderr before any log configuration could stop it, and Spark
            # makes a directory `artifacts` where it is started.
            pipes = {"stderr": log, "stdout": log, "cwd": log_path.parent}
            return launcher.launch_gateway(conf, pipes)
        finally:
            launcher.Popen = before


def _tail(log_path: Path | None) -> list[str]:
    if log_path is None or not log_path.exists():
        return []
    return _short(log_path.read_text(errors="replace").splitlines())[-_LOG_TAIL_LINES:]


def _short(lines: Sequence[str]) -> list[str]:
    """The lines without those of Java's stacks."""
    return [line for line in lines if line.strip() and not line.lstrip().startswith("at ")]


def _conf(options: SparkOptions, scratch: Path, gateway: Any, *, is_submitted: bool) -> SparkConf:
    """The settings of the session, on top of those that the JVM has."""
    jvm: Any = gateway.jvm
    submitted = dict(SparkConf(_jvm=jvm).getAll()) if is_submitted else {}
    given = submitted | (asked(options) if is_submitted else launched(options))
    master = given.get("spark.master", LOCAL_MASTER)
    settings = defaults(options, master, scratch) | {"spark.master": master} | given
    if is_submitted and (jars := _added_jars(jvm, options.jars)):
        settings["spark.jars"] = ",".join(filter(None, [settings.get("spark.jars"), *jars]))
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, value)
    return conf


def _added_jars(jvm: Any, jars: Sequence[Path]) -> list[str]:
    """Adds jars to the class path of a running driver, unless that has what they are for."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()

    def has_class(name: str) -> bool:
        try:
            loader.loadClass(name)
        except Py4JError:
            return False
        return True

    added = jars_to_add(jars, has_class)
    for jar in added:
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    return [str(jar) for jar in added]


@contextmanager
def while_spark_lives() -> Generator[None]:
    """Gives the end of Spark's JVM one sentence; to be put around the block of a session.

    Raises:
        FatalError: the JVM has ended, by a signal or for lack of memory.
    """
    root = logging.getLogger()
    root.addFilter(_is_not_of_dead_jvm)
    try:
        yield
    except (ConnectionError, Py4JNetworkError) as error:
        raise _ended() from error
    finally:
        root.removeFilter(_is_not_of_dead_jvm)


def check_spark_lives(spark: SparkSession) -> None:
    """Asks the session's JVM for a sign of life; a JVM that is stopped never answers.

    Raises:
        FatalError: the JVM has ended.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 - no public call of PySpark asks the JVM and nothing else
    try:
        jvm.java.lang.System.nanoTime()
    except (OSError, Py4JError) as error:
        raise _ended() from error


def _is_not_of_dead_jvm(record: logging.LogRecord) -> bool:
    """Whether a line is not py4j's own, with a stack, about a JVM that does not answer."""
    return record.msg != "Exception while sending command."


def _ended() -> FatalError:
    return FatalError(
        "spark's JVM has ended",
        detail="it was killed, or the machine had no memory left",
        hint="start the command again: it goes on from what is stored",
    )
