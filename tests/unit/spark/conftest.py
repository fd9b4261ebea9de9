"""The session of the run, started by the first test that needs it."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.spark.session import local_spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The run's Spark session."""
    with local_spark() as session:
        yield session
