"""`stilltide size`: what it prints."""

import json

from click.testing import CliRunner

from stilltide.pipeline.cli.size import size
from stilltide.pipeline.core.sizing import Load, needs

WORDS = ("--transactions", "1000000", "--partitions", "100000", "--groups", "1000", "--clusters")


def test_the_needs_are_printed_and_the_next_limit_is_named():
    """As JSON on stdout, with the limit on stderr; the table has the same rows."""
    done = CliRunner().invoke(size, [*WORDS, "3", "-o", "json"])
    load = Load(transactions_per_s=1e6, partitions=100_000, groups=1000, clusters=3)
    rows = json.loads(done.stdout)
    assert [row["what"] for row in rows] == [it.what for it in needs(load)]
    assert "the next limit: " in done.stderr
    table = CliRunner().invoke(size, [*WORDS, "3"])
    assert all(row["what"] in table.stdout for row in rows)


def test_a_load_that_does_not_fit_is_said_to():
    """The exit code is that of a command that did what it was asked."""
    done = CliRunner().invoke(size, ["--transactions", "1e8", "--partitions", "10"])
    assert done.exit_code == 0, done.output
    assert "the load does not fit: " in done.stderr
