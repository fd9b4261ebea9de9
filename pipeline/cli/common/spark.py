"""Options of commands that use Spark, and what they show of its work.

*Invariants*: a bar is drawn on stderr, and only if that is a terminal.
"""

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.names import check_topic_name
from stilltide.connectors.spark.options import DRIVER_MEMORY, SparkOptions, SparkView, TaskCounts
from stilltide.pipeline.cli.common.asking import options
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.errors import ConfigError

_Command = TypeVar("_Command", bound=Callable[..., Any])


class SparkAsked(NamedTuple):
    """The values of a command's options about Spark."""

    conf: Sequence[str]
    ui: bool
    master: str | None = None
    driver_memory: str = DRIVER_MEMORY

    def options(self, view: SparkView) -> SparkOptions:
        """The session's options.

        Raises:
            ConfigError: a value of `conf` is not `K=V`.
        """
        settings: dict[str, str] = {}
        for text in self.conf:
            name, equals, value = text.partition("=")
            if not name.strip() or not equals:
                raise ConfigError(
                    f"--conf {text}: not K=V", hint="--conf spark.executor.memory=2g, for example"
                )
            settings[name.strip()] = value
        return SparkOptions(
            jars=spark_jars(),
            master=self.master,
            driver_memory=self.driver_memory,
            settings=settings,
            ui=self.ui,
            view=view,
        )


def _topic_names(_ctx: click.Context, _param: click.Parameter, given: Sequence[str]) -> list[str]:
    names = [name.strip() for one in given for name in one.split(",")]
    if not all(names):
        raise ConfigError("--topics names an empty topic", hint="--topics orders,payments")
    for name in names:
        check_topic_name(name, "a topic of --topics")
    return names


topics_option = click.option(
    "--topics",
    multiple=True,
    required=True,
    callback=_topic_names,
    help="Topics, separated by commas; may be repeated.",
)
"""Adds the topics of a command that reads them with Spark; the command gets names, not empty."""


def run_options(every_s: float, every_s_min: float, done: str) -> Callable[[_Command], _Command]:
    """Adds when a command runs again: `every_s`, seconds, and `is_once`.

    Args:
        every_s: the default.
        every_s_min: the lowest value.
        done: what everything is that `--once` waits for.
    """
    return options(
        click.option(
            "--once", "is_once", is_flag=True, help=f"End when everything is {done}, for cron."
        ),
        click.option(
            "--every",
            "every_s",
            type=click.FloatRange(every_s_min, 86_400),
            default=every_s,
            show_default=True,
            help="Seconds from the end of a run to the next one.",
        ),
    )


def spark_options(*, master: bool = True) -> Callable[[_Command], _Command]:
    """Adds the options of a command that uses Spark; the command gets them as `spark`.

    Args:
        master: whether master and heap are the user's choice.
    """
    added = [
        click.option(
            "--conf",
            multiple=True,
            metavar="K=V",
            help="A setting of Spark, such as spark.driver.host=10.0.0.5; may be repeated.",
        ),
        click.option("--ui", is_flag=True, help="Serve Spark's UI, and print its address."),
    ]
    if master:
        added = [
            click.option(
                "--master", help="Spark master URL.  [default: that of spark-submit, else local[*]]"
            ),
            click.option(
                "--driver-memory",
                default=DRIVER_MEMORY,
                show_default=True,
                help="Heap of Spark's driver; spark-submit has its own option.",
            ),
            *added,
        ]

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def with_spark(*arguments: Any, **values: Any) -> Any:
            asked = {name: values.pop(name) for name in SparkAsked._fields if name in values}
            return command(*arguments, spark=SparkAsked(**asked), **values)

        decorated: Any = with_spark
        return options(*reversed(added))(decorated)

    return decorate


LINES_EVERY_S = 10.0
"""Seconds between two lines of progress, where there is no bar."""


class SparkLines:
    """A `SparkView` without a terminal: says where the UI is, and now and then which tasks run."""

    def __init__(self) -> None:
        self._next_s: float | None = None

    def serving(self, url: str) -> None:
        """Prints the address."""
        say(f"Spark's UI is at {url}")

    def tasks(self, counts: TaskCounts) -> None:
        """Prints a line if stages run for longer than `LINES_EVERY_S`."""
        now_s = time.monotonic()
        if not counts.stages:
            self._next_s = None
        elif self._next_s is None:
            self._next_s = now_s + LINES_EVERY_S
        elif now_s >= self._next_s:
            self._next_s = now_s + LINES_EVERY_S
            say(_tasks_text(counts))


class SparkBar:
    """A `SparkView` on a terminal: a bar that counts the tasks of the stages that run.

    Args:
        bar: what the bar is drawn in.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", visible=False)

    def serving(self, url: str) -> None:
        """Prints the address above the bar."""
        self._bar.console.print(f"Spark's UI is at {url}", highlight=False)

    def tasks(self, counts: TaskCounts) -> None:
        """Moves the bar; hides it between jobs."""
        self._bar.update(
            self._task,
            description=_tasks_text(counts),
            completed=counts.done,
            total=counts.total,
            visible=counts.stages > 0,
        )


@contextmanager
def task_view() -> Generator[SparkView]:
    """A bar of Spark's tasks on a terminal, lines otherwise; both on stderr."""
    if not sys.stderr.isatty():
        yield SparkLines()
        return
    columns = BarColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield SparkBar(bar)


def _tasks_text(counts: TaskCounts) -> str:
    return (
        f"Spark: {counts.done} of {counts.total} tasks, {counts.running} running, "
        f"{_counted(counts.stages, 'stage')}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
