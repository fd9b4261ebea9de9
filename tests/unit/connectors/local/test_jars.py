"""Locked jars: parsed strictly, verified always, fetched once."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from zipfile import ZipFile

import pytest

from stilltide.connectors.local import jars
from stilltide.connectors.local.errors import JarsError, SparkVersionError
from stilltide.connectors.local.jars import Coordinate

CONTENT = {"one-1.0.jar": b"first", "two-2.0.jar": b"second"}


class Mirror:
    """Serves jars from memory and remembers what it was asked for."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content
        self.asked: list[str] = []

    def fetch(self, coordinates: Sequence[Coordinate], directory: Path) -> None:
        """Writes the jars that were asked for."""
        for coordinate in coordinates:
            self.asked.append(coordinate.file_name)
            (directory / coordinate.file_name).write_bytes(self.content[coordinate.file_name])


@pytest.fixture
def _small_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
    lock = tmp_path / "jars.lock"
    lock.write_text(f"[set]\n{sums['one-1.0.jar']}  g:one:1.0\n{sums['two-2.0.jar']}  g:two:2.0\n")
    monkeypatch.setattr(jars, "LOCK_PATH", lock)


def test_committed_lock_holds_the_sets_of_kafka():
    """The lock pins the broker, and apart from it what tests and measurements use."""
    sets = jars.read_lock(jars.LOCK_PATH.read_text())
    names = {name: {jar.coordinate.file_name for jar in found} for name, found in sets.items()}
    assert set(names) == {"broker", "mirror", "tools", "streams", "connect", "flink"}
    assert {"kafka_2.13-4.4.0.jar", "kafka-clients-4.4.0.jar"} <= names["broker"]


@pytest.mark.parametrize("version", jars.SPARK_VERSIONS)
def test_each_version_of_spark_has_its_kafka_source(version: str):
    """Source and Avro are of that release line; the known holes of kafka-clients are closed."""
    found = jars.read_lock(jars.spark_lock_path(version).read_text())["spark"]
    of_spark = [it.coordinate for it in found if it.coordinate.group == "org.apache.spark"]
    assert len(of_spark) == 3
    assert all(it.version.startswith(f"{version}.") for it in of_spark)
    (clients,) = [it.coordinate for it in found if it.coordinate.artifact == "kafka-clients"]
    assert tuple(map(int, clients.version.split("."))) >= (3, 9, 1)


def test_another_version_of_spark_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The error names the version that is there, and those that are supported."""
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text('__version__: str = "3.5.1"\n')
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SparkVersionError, match=r"Spark 3\.5\.1 is not supported"):
        jars.spark_jars()
    (package / "version.py").write_text('__version__: str = "4.1.7"\n')
    assert jars.spark_version() == "4.1"


def test_the_version_of_an_archived_spark_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in a program of spark-submit, which runs with pyspark.zip."""
    with ZipFile(tmp_path / "pyspark.zip", "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
        archive.writestr("pyspark/version.py", '__version__: str = "4.2.0"\n')
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "pyspark.zip")
    assert jars.spark_version() == "4.2"


@pytest.mark.parametrize(
    ("version", "formats"),
    [("4.0", ["delta", "iceberg"]), ("4.1", ["delta", "iceberg"]), ("4.2", ["delta"])],
)
def test_a_table_format_is_of_its_version_of_spark(version: str, formats: list[str]):
    """A format's jar that depends on Spark is one for that release line."""
    assert jars.table_formats(version) == formats
    locked = jars.read_lock(jars.spark_lock_path(version).read_text())
    names = {jar.coordinate.artifact for name in formats for jar in locked[name]}
    delta = "delta-spark_2.13" if version == "4.0" else f"delta-spark_{version}_2.13"
    expected = {"delta": delta, "iceberg": f"iceberg-spark-runtime-{version}_2.13"}
    assert {expected[name] for name in formats} <= names


def test_a_table_format_without_jars_is_refused():
    """The error names the versions of PySpark that the format is for, and another way on."""
    with pytest.raises(SparkVersionError, match=r"no jars of iceberg .* Spark 4\.2") as refused:
        jars.format_jars("iceberg", "4.2")
    assert "PySpark 4.0 or 4.1, or" in str(refused.value.hint)


@pytest.mark.parametrize("version", jars.KAFKA_VERSIONS)
def test_each_version_has_a_broker(version: str):
    """The lock of a version has a broker of that release line."""
    names = [
        jar.coordinate for jar in jars.read_lock(jars.lock_path(version).read_text())["broker"]
    ]
    (kafka,) = [it for it in names if it.artifact == "kafka_2.13"]
    assert kafka.version.startswith(f"{version}.")


def test_file_names_differ():
    """Jars of all sets share one directory, so different ones must differ in their file names."""
    paths = [jars.lock_path(it) for it in jars.KAFKA_VERSIONS]
    paths += [jars.spark_lock_path(it) for it in jars.SPARK_VERSIONS]
    locks = [jars.read_lock(path.read_text()) for path in paths]
    found = {
        (jar.coordinate.file_name, jar)
        for sets in locks
        for jars_of in sets.values()
        for jar in jars_of
    }
    names = [name for name, _ in found]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "line", ["abc  g:a:1", f"{'0' * 64}", f"{'0' * 64}  g:a", f"{'0' * 64}  g:a:1  more"]
)
def test_malformed_lock_line_is_refused(line: str):
    """A lock line that is not a digest and a coordinate is an error, not a jar less."""
    with pytest.raises(JarsError):
        jars.read_lock(f"[set]\n{line}\n")


def test_jar_outside_a_set_is_refused():
    """A jar before the first set belongs nowhere."""
    with pytest.raises(JarsError, match="line 1"):
        jars.read_lock(f"{'0' * 64}  g:a:1\n")


@pytest.mark.usefixtures("_small_lock")
def test_second_use_fetches_nothing(tmp_path: Path):
    """Jars are fetched once; later uses verify and return them."""
    mirror = Mirror(CONTENT)
    first = jars.jar_set("set", tmp_path / "cache", mirror.fetch)
    second = jars.jar_set("set", tmp_path / "cache", mirror.fetch)
    assert first == second
    assert [path.read_bytes() for path in first] == [b"first", b"second"]
    assert mirror.asked == ["one-1.0.jar", "two-2.0.jar"]


@pytest.mark.usefixtures("_small_lock")
def test_corrupted_jar_is_fetched_again(tmp_path: Path):
    """A cached jar whose content changed is noticed, and it alone is fetched again."""
    mirror = Mirror(CONTENT)
    one, _ = jars.jar_set("set", tmp_path / "cache", mirror.fetch)
    one.write_bytes(b"firsT")
    mirror.asked.clear()
    jars.jar_set("set", tmp_path / "cache", mirror.fetch)
    assert one.read_bytes() == b"first"
    assert mirror.asked == ["one-1.0.jar"]


@pytest.mark.usefixtures("_small_lock")
def test_wrong_download_is_refused(tmp_path: Path):
    """A mirror that serves another file than was locked is caught; the cache stays clean."""
    mirror = Mirror({**CONTENT, "two-2.0.jar": b"evil"})
    with pytest.raises(JarsError, match=r"two-2\.0\.jar is not the file"):
        jars.jar_set("set", tmp_path / "cache", mirror.fetch)
    assert not list((tmp_path / "cache").glob("*.jar"))
    assert not list((tmp_path / "cache").glob("fetch-*"))


@pytest.mark.usefixtures("_small_lock")
def test_concurrent_users_fetch_once(tmp_path: Path):
    """Of several that need the same jars at once, one fetches and the others wait for it."""
    mirror = Mirror(CONTENT)
    users = [
        Thread(target=jars.jar_set, args=("set", tmp_path / "cache", mirror.fetch))
        for _ in range(8)
    ]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert sorted(mirror.asked) == sorted(CONTENT)


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch):
    """Our own variable wins over XDG_CACHE_HOME, which wins over ~/.cache."""
    monkeypatch.setenv("STILLTIDE_CACHE_DIR", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert jars.cache_dir() == Path("/own")
    monkeypatch.delenv("STILLTIDE_CACHE_DIR")
    assert jars.cache_dir() == Path("/xdg/stilltide")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert jars.cache_dir() == Path.home() / ".cache" / "stilltide"
