"""Asks a database of vulnerabilities about the locked packages: `python -m tests.supply.audit`.

`pip-audit` asks; the exit code says what is known: 0 nothing found, 3 something found, 4 the
database did not answer. The codes are those of `stilltide`.
"""

import json
import subprocess
import sys
from typing import NamedTuple

from tests.supply.locks import ROOT

PIP_AUDIT = "pip-audit==2.10.1"
CLEAN, FOUND, UNKNOWN = 0, 3, 4
TIMEOUT_S = 600


class Verdict(NamedTuple):
    """An exit code, and what to tell people."""

    code: int
    lines: list[str]


def verdict(stdout: str, stderr: str) -> Verdict:
    """What the output of `pip-audit --format json` means.

    Without a report nothing is known, whatever the exit code: `pip-audit` ends with 1 both if it
    found a vulnerability and if it found no database.
    """
    try:
        report = json.loads(stdout)
    except json.JSONDecodeError:
        cause = (stderr.strip().splitlines() or ["no output"])[-1]
        told = "no package was audited: the database of vulnerabilities did not answer"
        return Verdict(UNKNOWN, [told, cause])
    lines = [
        f"{package['name']} {package['version']}: {fault['id']}, "
        f"fixed in {', '.join(fault['fix_versions']) or 'no version'}"
        for package in report["dependencies"]
        for fault in package.get("vulns", [])
    ]
    skipped = [one["name"] for one in report["dependencies"] if "skip_reason" in one]
    if skipped:
        lines.append(f"not audited: {', '.join(skipped)}")
    if any("vulns" in one and one["vulns"] for one in report["dependencies"]):
        return Verdict(FOUND, lines)
    count = len(report["dependencies"]) - len(skipped)
    return Verdict(
        UNKNOWN if skipped or not count else CLEAN,
        [*lines, f"{count} packages have no known vulnerability"],
    )


def main() -> int:
    """Audits requirements.lock; returns the exit code."""
    command = [sys.executable, "-m", "uv", "tool", "run", "--quiet", "--from", PIP_AUDIT]
    options = ["--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    lock = ["--requirement", str(ROOT / "requirements.lock")]
    try:
        done = subprocess.run(
            [*command, "pip-audit", "--vulnerability-service", "osv", *options, *lock],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        found = verdict(done.stdout, done.stderr)
    except subprocess.TimeoutExpired as error:
        found = verdict("", str(error))
    sys.stderr.write("\n".join(found.lines) + "\n")
    return found.code


if __name__ == "__main__":
    sys.exit(main())
