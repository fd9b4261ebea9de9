"""The promises of connectors.ports, on the official image of Kafka."""

import os
import subprocess
import sys

import pytest

from tests.support.processes.containers import ROOT, kafka_container

TIMEOUT_S = 600
pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


def test_contract_suite_passes_on_the_official_image():
    """What holds on the embedded broker holds on Kafka as it is deployed."""
    with kafka_container() as bootstrap:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "tests/contract", "-k", "kafka"],
            cwd=ROOT,
            env=os.environ | {"TEST_BOOTSTRAP": bootstrap},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
