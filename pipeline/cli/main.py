"""The root of `stilltide`: finds the command, sets up logging, turns failures into exit codes.

Only the module of the command that is run is imported: Faust alone takes more than a second.

*Invariants*: exit codes: 0 done, 1 a `StilltideError`, 2 wrong usage, 130 Ctrl-C.
"""

import difflib
import errno
import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem
from google.protobuf.internal import api_implementation

from stilltide.pipeline.cli.common.helps import written_help
from stilltide.pipeline.cli.common.output import print_error, say
from stilltide.pipeline.cli.program import EXIT_INTERRUPTED
from stilltide.pipeline.errors import PipelineError
from stilltide.pipeline.logging import FORMATS, LEVELS, configure_logging
from stilltide.schemas.errors import StilltideError

EXIT_FAILURE = 1


class Noun(NamedTuple):
    """A command as `module:attribute` of this package, and its line in the help."""

    target: str
    help: str


SECTIONS: Mapping[str, Mapping[str, Noun]] = MappingProxyType(
    {
        "Begin": {
            "demo": Noun("demo:demo", "Run transactions end to end and check them."),
            "doctor": Noun(
                "doctor:doctor", "Check this installation and its cluster, and name the next step."
            ),
            "local": Noun("local:local", "Run Kafka clusters on this machine."),
            "config": Noun("config:config", "See the settings in force."),
            "size": Noun("size:size", "Say how many processes a load needs, and what limits it."),
            "completion": Noun(
                "completion:completion", "Complete commands and options in bash, zsh or fish."
            ),
        },
        "Topics and records": {
            "topics": Noun(
                "topics:topics", "Create, show, delete and check the topics of a cluster."
            ),
            "produce": Noun(
                "records:produce", "Write the lines of a file to a topic, as one transaction."
            ),
            "consume": Noun("records:consume", "Print the committed records of topics."),
            "publish": Noun(
                "links:publish",
                "Copy the committed records of a topic to one that every Kafka client can read.",
            ),
        },
        "Transactions": {
            "txn": Noun("txn:txn", "See and abort transactions."),
            "coordinator": Noun(
                "logs.coordinator:coordinator", "See figures of the transaction coordinators."
            ),
            "txn-log": Noun(
                "logs.coordinator:txn_log", "Switch and check the log of transactions."
            ),
            "native": Noun("native:native", "See and end Kafka's own transactions."),
            "snapshot": Noun("snapshot:snapshot", "Take snapshots of aborted transactions."),
            "index": Noun("index:index", "Index aborted native transactions of topics."),
        },
        "Groups": {
            "group": Noun(
                "group.command:group_command",
                "See and reset consumer groups, and control their replication.",
            ),
            "dead-letter": Noun(
                "dead_letter:dead_letter", "See, replay and drop messages that failed too often."
            ),
            "pending-ack": Noun(
                "logs.pending_ack:pending_ack", "See acknowledgements in transactions."
            ),
        },
        "Several clusters": {
            "replicate": Noun("links:replicate", "Copy topics to another cluster, exactly once."),
            "link": Noun("links:link", "Forget links that were retired."),
            "offset": Noun("links:offset", "Translate offsets between clusters."),
        },
        "Operation": {
            "worker": Noun("worker:worker", "Serve the transactions of a cluster."),
            "status": Noun(
                "status:status", "See all clusters on one screen, and what needs a person."
            ),
            "console": Noun(
                "console:console", "See all clusters in a browser, and what needs a person."
            ),
            "acl": Noun("acl:acl", "See the rights in Kafka that Stilltide's processes need."),
            "repair": Noun("repair:repair", "Repair damaged records of system topics."),
        },
        "Spark": {
            "audit": Noun("audit:audit", "Check the records of topics with Spark."),
            "table": Noun(
                "table:table", "Keep tables of the committed records of topics with Spark."
            ),
        },
    }
)
"""The commands as `--help` groups them, in its order."""

NOUNS: Mapping[str, Noun] = MappingProxyType(
    {name: noun for nouns in SECTIONS.values() for name, noun in nouns.items()}
)
"""Every command by its name."""


OLD_NOUNS = MappingProxyType({"subscription": "group"})
"""Former names of commands; they still work, and `--help` does not list them."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The nouns."""
        return sorted(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Imports the command of a noun."""
        from stilltide.pipeline.cli.common.texts import check_texts  # noqa: PLC0415 - no help needs it

        if (noun := NOUNS.get(OLD_NOUNS.get(cmd_name, cmd_name))) is None:
            return None
        module, _, attribute = noun.target.partition(":")
        return check_texts(getattr(importlib.import_module(f"{__package__}.{module}"), attribute))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The nouns that begin like this, without importing them, and the options."""
        nouns = [it for it in self.list_commands(ctx) if it.startswith(incomplete)]
        completions = [CompletionItem(name, help=NOUNS[name].help) for name in nouns]
        return completions + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Lists the nouns by what they are about, without importing them."""
        width = max(map(len, NOUNS))
        for title, nouns in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), it.help) for name, it in nouns.items()])


_UNKNOWN = re.compile(r"No such command '(.+)'\.")
"""click's message about a word that is no command of a group."""


def suggest(error: click.ClickException) -> None:
    """Adds the nearest commands to click's error about an unknown one."""
    match = _UNKNOWN.fullmatch(error.message)
    ctx = getattr(error, "ctx", None)
    if match is None or ctx is None or not isinstance(ctx.command, click.Group):
        return
    known = [*ctx.command.list_commands(ctx), *(OLD_NOUNS if ctx.command is cli else ())]
    near = difflib.get_close_matches(match[1], known, n=3)
    if near:
        error.message += f" Did you mean {' or '.join(map(repr, near))}?"


_EXAMPLES = """\b
Examples:
  stilltide demo                     transactions end to end, on a broker of its own
  stilltide local up --clusters 2    start clusters a and b, and leave them running
  stilltide local status -o json     addresses of these clusters, as JSON
  stilltide worker --cluster a       serve transactions on cluster a
  stilltide status --watch           all clusters on one screen, and what needs a person
  stilltide txn slow --over 60       transactions open for at least a minute
  stilltide local down               stop the clusters, keep their data
"""


@click.command(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXAMPLES
)
@click.version_option(package_name="stilltide")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="Lowest level of log lines on stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    envvar="STILLTIDE_LOG_FORMAT",
    show_envvar=True,
    help="Form of log lines on stderr.",
)
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    help="File of settings in TOML; sets STILLTIDE_CONFIG.",
)
def cli(log_level: str, log_format: str, config_path: str | None) -> None:
    """Transactions and read-committed subscriptions for plain Kafka topics.

    Settings: options of a command, else variables STILLTIDE_*, else the file of settings, else the
    defaults; `stilltide config show --origin` lists them.
    """
    configure_logging(log_level, log_format, silences_clients=True)
    if config_path is not None:
        # Imported late, because the import takes longer than all of `--help`.
        from stilltide.pipeline.config.sources import CONFIG_VARIABLE  # noqa: PLC0415

        os.environ[CONFIG_VARIABLE] = config_path  # for the processes that a command starts, too
    require_upb(api_implementation.Type())


_OUTPUT_FAILS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Failures of a write to where the output goes; a closed pipe is click's business."""


def require_upb(implementation: str) -> None:
    """Refuses to run on a protobuf implementation many times slower than upb."""
    if implementation != "upb":
        raise PipelineError(
            f"protobuf runs on its {implementation} implementation, not on upb",
            hint="unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION, or install protobuf's binary wheel",
        )


def run(arguments: Sequence[str]) -> int:
    """Runs a command line; returns its exit code, with failures printed to stderr."""
    _require_streams()
    try:
        if (written := written_help(arguments)) is not None:
            click.echo(written)
            return 0
        code = cli.main(list(arguments), prog_name="stilltide", standalone_mode=False)
        sys.stdout.flush()  # a disk that is full fails here, not after the exit code is chosen
    except StilltideError as error:
        print_error(error)
        return EXIT_FAILURE
    except click.ClickException as error:
        suggest(error)
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.errno not in _OUTPUT_FAILS or error.filename is not None:
            raise
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), 1
        )  # what is buffered still is written at the exit
        say(f"error: the output cannot be written: {error.strerror}")
        say("  hint: make room where it goes, or send it elsewhere, and run the command again")
        return EXIT_FAILURE
    return code if isinstance(code, int) else 0


def _require_streams() -> None:
    """Has output and errors go nowhere if the caller has closed them: Python has no stream then."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - pathlib takes time to load
