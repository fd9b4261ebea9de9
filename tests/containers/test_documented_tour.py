"""The tour of docs/deploying.md is true: its commands are run as the page has them."""

import re

import pytest

from tests.support.processes.containers import ROOT, Compose

TIMEOUT_S = 480
pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)

TOURS = re.findall(
    r"^## A tour\n(?:(?!^## ).)*?^```sh\n(.*?)^```$",
    (ROOT / "docs/deploying.md").read_text(),
    re.MULTILINE | re.DOTALL,
)


def test_the_tour_does_what_it_says(compose: Compose):
    """Transactions on a, which is killed; the group goes on at b, reads each order once."""
    (tour,) = TOURS
    script = f"set -euo pipefail\n{tour}"
    done = compose.run(["bash", "-c", script], check=False, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    billed = [int(line) for line in done.stdout.splitlines() if line.isdecimal()]
    assert sorted(billed) == [number for number in range(100) if number % 10 != 9]
    assert re.search(r"^valid; ", done.stdout, re.MULTILINE)
