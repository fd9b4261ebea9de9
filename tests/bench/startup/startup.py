"""What a program pays before its first line: the client library, and the command's help."""

import asyncio
import json
import re
import sys
from statistics import median

from tests.bench.harness import report, size

PROGRAMS = {
    "client": "import stilltide; stilltide.TransactionClient",
    "help": "import stilltide.pipeline.cli.main as main; main.run(['--help'])",
}
_USAGE = """
import json, resource, sys, time
began = time.perf_counter()
{program}
used = resource.getrusage(resource.RUSAGE_SELF)
figures = [time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]
print(json.dumps(figures), file=sys.stderr)
"""
_IMPORT = re.compile(r"import time:\s+\d+ \|\s+(\d+) \|( +)(\S+)")
_NAMED = 6
"""Modules that are named, those that cost most with all that they import."""


async def _said(*options: str) -> str:
    """What an interpreter of its own says on stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *options,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def _costliest(program: str) -> str:
    """The outermost modules that an interpreter imports for a program, and their milliseconds."""
    found = _IMPORT.findall(await _said("-X", "importtime", "-c", program))
    costs = sorted(((int(us) / 1000, name) for us, _, name in found), reverse=True)
    return ", ".join(f"{name} {ms:.0f}" for ms, name in costs[:_NAMED])


async def run() -> None:
    """Rounds in turn; the median of each figure."""
    rounds: dict[str, list[list[float]]] = {name: [] for name in PROGRAMS}
    for _ in range(size("ROUNDS", 9)):
        for name, program in PROGRAMS.items():
            said = await _said("-c", _USAGE.format(program=program))
            rounds[name].append(json.loads(said.splitlines()[-1]))
    report(
        "startup",
        [
            {
                "program": name,
                "wall_s": median(one[0] for one in rounds[name]),
                "processor_s": median(one[1] for one in rounds[name]),
                "peak_mib": median(one[2] for one in rounds[name]),
                "costliest_ms": await _costliest(program),
            }
            for name, program in PROGRAMS.items()
        ],
    )
