"""`stilltide audit`: prove with Spark that topics hold exactly what was committed.

*Source*: protocols.md C6; system.md, The pieces (Spark jobs).

*Invariants*: the exit code is the verdict; stdout holds the result and nothing else.
"""

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console

from connectors.local.jars import spark_jars
from connectors.spark.session import SparkOptions
from pipeline.cli.output import Row, output_option, print_rows, say
from pipeline.config import load_settings
from pipeline.jobs.audit import EVIDENCE_MAX, Progress
from pipeline.jobs.audit import audit as run_audit
from pipeline.jobs.audit_result import AuditResult, PartitionAudit, Verdict

EXIT_CODES = {Verdict.VALID: 0, Verdict.INVALID: 3, Verdict.UNKNOWN: 4}
"""1 and 2 are taken by failures and wrong usage."""

_DIGEST_DIGITS_SHOWN = 8
_FAULTS = ("undecided", "malformed", "late")


@click.command(
    epilog="""\b
Exit codes:
  0  valid: every partition holds exactly what was committed, as far as outcomes still tell
  1  the audit failed
  3  invalid: the findings say what is wrong
  4  unknown: some records cannot be judged, yet or any more

\b
Examples:
  stilltide audit --topic orders --topic payments
  stilltide audit --bootstrap-servers broker:9092 --topic orders -o json
  stilltide audit --topic orders -o json | jq '.findings[]'
"""
)
@click.option("--bootstrap-servers", help="Brokers of the cluster, host:port with commas between.")
@click.option(
    "--topic", "topics", multiple=True, required=True, help="A topic to audit; may be repeated."
)
@click.option(
    "--evidence",
    "evidence_max",
    type=click.IntRange(0, 10_000),
    default=EVIDENCE_MAX,
    show_default=True,
    help="Findings to list of each kind; all are counted.",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark master URL.")
@click.option("--driver-memory", default="1g", show_default=True, help="Heap of Spark's driver.")
@output_option
@click.pass_context
def audit(  # noqa: PLR0917 - click passes options by name
    ctx: click.Context,
    bootstrap_servers: str | None,
    topics: tuple[str, ...],
    evidence_max: int,
    master: str,
    driver_memory: str,
    output: str,
) -> None:
    """Check with Spark what topics hold against the outcomes of transactions.

    Reads every partition up to its last stable offset as of now, and reports records written,
    visible, hidden and withheld, and transactions whose records are missing, surplus or late.

    Where a snapshot of aborted transactions has absorbed the outcome of a committed one, how many
    records it promised is not known any more: such transactions are counted as `counts unchecked`.
    """
    settings = load_settings(bootstrap_servers=bootstrap_servers)
    options = SparkOptions(jars=spark_jars(), master=master, driver_memory=driver_memory)
    with _progress() as progress:
        result = run_audit(
            settings.bootstrap_servers,
            topics,
            spark_options=options,
            evidence_max=evidence_max,
            progress=progress,
        )
    if output == "json":
        print(json.dumps(result.to_dict(), indent=2))
    else:
        _print_tables(result)
    ctx.exit(EXIT_CODES[result.verdict])


@contextmanager
def _progress() -> Generator[Progress]:
    """A spinner on a terminal, lines elsewhere; both on stderr."""
    if not sys.stderr.isatty():
        yield say
        return
    with Console(stderr=True).status("starting") as status:
        yield status.update


def _print_tables(result: AuditResult) -> None:
    print_rows(
        _record_rows(result.partitions),
        "table",
        title=f"records (digest: last {_DIGEST_DIGITS_SHOWN} hexadecimal digits)",
    )
    print_rows(result.to_dict()["findings"], "table", title="findings")
    summary = {
        "verdict": result.verdict.value,
        "committed": result.transactions_committed,
        "aborted": result.transactions_aborted,
        "counts unchecked": result.transactions_unchecked,
        "findings": sum(result.finding_counts.values()),
        "seconds": round(result.elapsed_s, 1),
    }
    print_rows([summary], "table", title="transactions")


def _record_rows(partitions: Sequence[PartitionAudit]) -> list[Row]:
    """One row for each partition; a fault that no partition has gets no column."""
    faults = [fault for fault in _FAULTS if any(getattr(each, fault) for each in partitions)]
    return [
        {
            "partition": f"{each.topic}/{each.partition}",
            "offsets": f"[{each.start_offset}, {each.end_offset})",
            "written": each.written,
            "visible": each.visible,
            "plain": each.plain,
            "hidden": each.hidden,
            **{fault: getattr(each, fault) for fault in faults},
            "digest": f"{each.digest:x}"[-_DIGEST_DIGITS_SHOWN:],
        }
        for each in partitions
    ]
