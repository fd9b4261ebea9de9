"""Three brokers under every fault, with the gaps of commits beside those of native producers.

`make chaos ARGS="-k three_brokers"`; the gaps need a machine that does nothing else. What must hold
after each scenario is in `tests/support/brokers/world.py`.
"""

import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.brokers.scenarios import SCENARIOS, Scenario
from tests.support.brokers.site import Site, running_site

BEHIND_MAX_S = 2.0
"""How much longer than librdkafka's own transactions ours may be without a commit."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three brokers with two workers for all scenarios: what one leaves the next must bear."""
    with running_site(tmp_path_factory.mktemp("brokers")) as made:
        yield made


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.__name__)
async def test_commits_go_on(site: Site, scenario: Scenario):
    """Nothing is lost or doubled, and commits go on about as soon as those of native producers."""
    async with site.world() as world:
        began_s = time.monotonic()
        await scenario(site.brokers, world)
        gaps = world.gaps(began_s)
    sys.stdout.write(f"{scenario.__name__}: {gaps}\n")
    assert gaps.ours_s <= gaps.native_s + BEHIND_MAX_S, gaps
