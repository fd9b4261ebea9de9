"""`stilltide.spark`: what programs with PySpark import."""

import subprocess
import sys

import pytest

import stilltide.spark

_WITHOUT_PYSPARK = """
import sys

sys.modules["pyspark"] = None
import stilltide.spark

stilltide.spark.stream
"""


@pytest.mark.parametrize("name", stilltide.spark.__all__)
def test_every_name_is_there(name: str):
    """A name of the list is loaded at its first use, and is what its module calls so."""
    found = getattr(stilltide.spark, name)
    assert found.__name__ == name
    assert found.__module__.startswith("stilltide.")


def test_a_missing_library_is_named():
    """An installation without the extra says which extra."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PYSPARK], capture_output=True, text=True, check=False
    )
    assert (
        "ImportError: stilltide.spark needs pyspark: pip install 'stilltide[spark]'" in done.stderr
    )
