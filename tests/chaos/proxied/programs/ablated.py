"""A program of real processes with a rule switched off: the checker has to notice.

`python -m tests.chaos.proxied.programs.ablated RULE MODULE ARGUMENTS`
"""

import runpy
import sys

from tests.simulation.ablations import without


def main() -> None:
    """Runs the module as `python -m` does."""
    rule, module = sys.argv[1:3]
    del sys.argv[:2]
    with without(rule):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
