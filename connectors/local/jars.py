"""The jars of the broker, of Spark's Kafka source and of table formats: pinned, fetched once.

*Invariants*: a lock lists every jar of a set with its SHA-256, so resolvers decide nothing,
and Maven and Ivy return the same files; no path is returned whose content differs from the lock; a
jar enters the cache by an atomic rename, so several processes may fetch at once.

Two ways to fetch jars by coordinate: Maven, and the Ivy that pyspark contains.

*Invariants*: neither follows dependencies, so both fetch exactly the requested files; the user's
own settings (Maven's settings.xml, Ivy's ivysettings.xml, Java's HTTPS options) apply.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

from stilltide.connectors.local.errors import (
    JarsError,
    KafkaVersionError,
    SparkVersionError,
)
from stilltide.connectors.local.java import find_java

MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_TIMEOUT_S = 900
_LINES_SHOWN = 12

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>stilltide</groupId><artifactId>jars</artifactId><version>1</version>
<dependencies>
{dependencies}
</dependencies>
</project>
"""
_POM_DEPENDENCY = (
    "<dependency><groupId>{0.group}</groupId><artifactId>{0.artifact}</artifactId>"
    "<version>{0.version}</version>{exclusions}</dependency>"
)
_NOTHING_ELSE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)
_IVY = """<ivy-module version="2.0">
<info organisation="stilltide" module="jars"/>
<configurations><conf name="default"/></configurations>
<dependencies>
{dependencies}
</dependencies>
</ivy-module>
"""


class Coordinate(NamedTuple):
    """The name of a jar in Maven and Ivy."""

    group: str
    artifact: str
    version: str

    @classmethod
    def parse(cls, text: str) -> "Coordinate":
        """Reads `group:artifact:version`; raises `JarsError` for anything else."""
        parts = text.split(":")
        if len(parts) != len(cls._fields) or not all(parts):
            raise JarsError(f"{text!r} is not group:artifact:version")
        return cls(*parts)

    @property
    def file_name(self) -> str:
        """`artifact-version.jar`."""
        return f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return ":".join(self)


def write_pom(path: Path, coordinates: Sequence[Coordinate], *, transitive: bool) -> None:
    """Writes a Maven project that depends on the coordinates."""
    exclusions = "" if transitive else _NOTHING_ELSE
    lines = [_POM_DEPENDENCY.format(each, exclusions=exclusions) for each in coordinates]
    path.write_text(_POM.format(dependencies="\n".join(lines)))


def fetch_with_maven(coordinates: Sequence[Coordinate], directory: Path) -> None:
    """Puts the jars of the coordinates into `directory`.

    Raises:
        JarsError: Maven failed; quotes its last lines.
    """
    pom = directory / "pom.xml"
    write_pom(pom, coordinates, transitive=False)
    goal = f"{MAVEN_PLUGIN}:copy-dependencies"
    run_tool(["mvn", "-B", "-q", "-f", str(pom), goal, f"-DoutputDirectory={directory}"], directory)


def fetch_with_ivy(coordinates: Sequence[Coordinate], directory: Path) -> None:
    """Puts the jars of the coordinates into `directory`.

    Raises:
        JarsError: Ivy failed; quotes its last lines.
        JavaMissingError: there is no Java to run Ivy.
    """
    module = directory / "ivy.xml"
    lines = [
        f"<dependency org={quoteattr(each.group)} name={quoteattr(each.artifact)} "
        f'rev={quoteattr(each.version)} conf="default->default" transitive="false"/>'
        for each in coordinates
    ]
    module.write_text(_IVY.format(dependencies="\n".join(lines)))
    settings = Path.home() / ".ivy2" / "ivysettings.xml"
    command = [str(find_java().path), "-jar", str(_ivy_jar())]
    command += ["-settings", str(settings)] if settings.exists() else []
    command += ["-cache", str(directory / "ivy"), "-ivy", str(module)]
    # Jars with native libraries have the type `bundle`; Ivy leaves unlisted types out.
    command += ["-types", "jar", "bundle"]
    command += ["-retrieve", str(directory / "[artifact]-[revision].[ext]")]
    run_tool(command, directory)


def run_tool(command: Sequence[str], directory: Path) -> None:
    """Runs a resolver to its end; raises `JarsError` with its last lines when it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - arguments are ours
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise JarsError(
            f"{command[0]} did not end within {_TIMEOUT_S} s", hint="check the network"
        ) from error
    if done.returncode:
        raise JarsError(
            "the jars of the local broker and Spark could not be fetched",
            detail="\n".join(done.stdout.strip().splitlines()[-_LINES_SHOWN:]),
            hint="check the network, and the mirror and proxy settings of Maven or Java",
        )


def _ivy_jar() -> Path:
    # Without an import of pyspark, which only the jobs and stilltide.connectors.spark may import.
    spec = importlib.util.find_spec("pyspark")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(root).glob("jars/ivy-*.jar")):
            return jar
    raise JarsError(
        "there is neither Maven on the PATH nor Ivy inside pyspark",
        hint="install Stilltide's dependencies, or Maven",
    )


LOCK_PATH = Path(__file__).with_name("jars.lock")

KAFKA_VERSIONS = ("3.9", "4.0", "4.3", "4.4")
"""Release lines of Kafka that are locked, oldest first; a line's lock names its exact version."""

PINNED_VERSION = "4.4"
"""The release line that is used where none is asked for; `jars.lock` has it."""

SPARK_VERSIONS = ("4.0", "4.1", "4.2")
"""Release lines of Spark whose Kafka source is locked, each in a lock of its own, with the table
formats that there are for the line."""

VERSION_VARIABLE = "STILLTIDE_KAFKA_VERSION"
"""Environment variable that names the release line of local brokers."""

_SPARK_VERSION = re.compile(r"(\d+\.\d+)\.\d+\w*")

Fetch = Callable[[Sequence[Coordinate], Path], None]
"""Function that fetches jars by coordinate into a directory, under their file names."""


class LockedJar(NamedTuple):
    """A jar and the SHA-256 of its content, in hex."""

    coordinate: Coordinate
    sha256: str

    def is_intact(self, directory: Path) -> bool:
        """Whether `directory` holds the jar with the locked content."""
        try:
            with (directory / self.coordinate.file_name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except OSError:
            return False


def kafka_version(asked: str | None = None) -> str | None:
    """The release line that was asked for, by the argument, else by STILLTIDE_KAFKA_VERSION.

    Raises:
        KafkaVersionError: no lock has that line.
    """
    version = asked or os.environ.get(VERSION_VARIABLE) or None
    if version not in (None, *KAFKA_VERSIONS):
        source = "" if asked else f" ({VERSION_VARIABLE})"
        raise KafkaVersionError(
            f"there is no local broker of Kafka {version}{source}",
            hint=f"choose one of {', '.join(KAFKA_VERSIONS)}",
        )
    return version


def lock_path(version: str) -> Path:
    """The lock that has the broker of a release line."""
    return LOCK_PATH if version == PINNED_VERSION else LOCK_PATH.with_name(f"jars-{version}.lock")


def broker_jars(version: str = PINNED_VERSION) -> list[Path]:
    """The class path of the broker of a release line, fetched when not cached.

    Raises:
        JarsError: a jar could not be fetched, or differs from the lock.
    """
    return jar_set("broker", lock=lock_path(version))


def spark_jars(version: str | None = None) -> list[Path]:
    """The jars of Spark's Kafka source that pyspark does not contain, fetched when not cached.

    Args:
        version: Spark's release line, such as `4.0`; by default that of the installed PySpark.

    Raises:
        JarsError: a jar could not be fetched, or differs from the lock.
        SparkVersionError: there is no PySpark, or no lock has its release line.
    """
    return jar_set("spark", lock=spark_lock_path(version or spark_version()))


def format_jars(name: str, version: str | None = None) -> list[Path]:
    """The jars of a table format, in addition to `spark_jars`, fetched when not cached.

    Args:
        name: `delta` or `iceberg`.
        version: as for `spark_jars`.

    Raises:
        JarsError: a jar could not be fetched, or differs from the lock.
        SparkVersionError: as for `spark_jars`; or the format has no jars for the release line.
    """
    version = version or spark_version()
    having = [one for one in SPARK_VERSIONS if name in table_formats(one)]
    if version not in having:
        raise SparkVersionError(
            f"no jars of {name} are locked for Spark {version}",
            hint=f"install PySpark {' or '.join(having)}, or store the table as parquet:PATH",
        )
    return jar_set(name, lock=spark_lock_path(version))


def table_formats(version: str) -> list[str]:
    """The names of the table formats that there are for a release line of Spark."""
    sets = read_lock(spark_lock_path(version).read_text())
    return [name for name in sets if name != "spark"]


def spark_lock_path(version: str) -> Path:
    """The lock that has the Kafka source, and the table formats, of a release line of Spark."""
    return LOCK_PATH.with_name(f"jars-spark-{version}.lock")


def spark_version() -> str:
    """The release line of the PySpark that this process imports, such as `4.0`.

    Raises:
        SparkVersionError: there is none, or no lock has the release line.
    """
    # Without an import, which only the jobs and stilltide.connectors.spark may do; and not from the
    # package's metadata, which a Spark outside of this environment does not have. spark-submit
    # gives its processes the package as an archive.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkVersionError(
            "there is no PySpark", hint="install the extra: pip install 'stilltide[spark]'"
        )
    loader: Any = spec.loader
    text = loader.get_data(str(Path(spec.origin).with_name("version.py"))).decode()
    version = _SPARK_VERSION.search(text)
    if version is None or version[1] not in SPARK_VERSIONS:
        raise SparkVersionError(
            f"Spark {version[0] if version else text.strip()} is not supported",
            hint=f"install PySpark of a release line of {', '.join(SPARK_VERSIONS)}",
        )
    return version[1]


def class_archive(java: Path, jars: Sequence[Path]) -> Path:
    """The place of the archive of a broker's classes; there may be none yet.

    With an archive (JEP 350) a JVM maps the classes instead of reading them from jars, and a broker
    starts with two thirds of the processor time. A JVM ignores an archive that does not fit it: an
    archive can be useless, but never wrong.

    Args:
        java: the launcher.
        jars: the class path of the broker.
    """
    program = java.resolve()
    made_of = [str(program), str(program.stat().st_mtime_ns), *map(str, jars)]
    name = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    return cache_dir() / "classes" / f"{name}.jsa"


def cache_dir() -> Path:
    """The cache: STILLTIDE_CACHE_DIR, else `stilltide` in XDG_CACHE_HOME, else in ~/.cache."""
    if own := os.environ.get("STILLTIDE_CACHE_DIR"):
        return Path(own)
    user = os.environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "stilltide"


def jar_set(
    name: str,
    directory: Path | None = None,
    fetch: Fetch | None = None,
    *,
    lock: Path | None = None,
) -> list[Path]:
    """The paths of a locked set, verified in this call; missing and corrupt jars are fetched.

    Args:
        name: `broker` or another set of `jars.lock`, or `spark`, `delta` or `iceberg` of a lock of
            Spark.
        directory: the directory of the jars; the user's cache by default.
        fetch: function that fetches jars; by default Maven if it is on the PATH, else Ivy.
        lock: the lock file; `jars.lock` by default.

    Raises:
        JarsError: a jar could not be fetched, or differs from the lock.
    """
    jars = read_lock((lock or LOCK_PATH).read_text())[name]
    directory = directory or cache_dir() / "jars"
    if any(not jar.is_intact(directory) for jar in jars):
        directory.mkdir(parents=True, exist_ok=True)
        with _only_one(directory):
            missing = [jar for jar in jars if not jar.is_intact(directory)]
            if missing:
                _refill(missing, directory, fetch or default_fetch())
    return [directory / jar.coordinate.file_name for jar in jars]


def default_fetch() -> Fetch:
    """Maven if it is on the PATH, so that the user's mirrors are used, else Ivy."""
    return fetch_with_maven if shutil.which("mvn") else fetch_with_ivy


def read_lock(text: str) -> dict[str, list[LockedJar]]:
    """The sets of a lock file: lines `[name]`, each followed by `sha256  group:artifact:version`.

    Raises:
        JarsError: a line has neither form; names the line.
    """
    sets: dict[str, list[LockedJar]] = {}
    current: list[LockedJar] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            current = sets.setdefault(line[1:-1], [])
            continue
        match line.split():
            case [sha256, spec] if (
                current is not None and len(sha256) == hashlib.sha256().digest_size * 2
            ):
                current.append(LockedJar(Coordinate.parse(spec), sha256))
            case _:
                raise JarsError(
                    f"line {number} of the jar lock is not `sha256  group:artifact:version`",
                    detail=repr(line),
                    hint="write the lock again: python -m stilltide.connectors.local.relock",
                )
    return sets


def _refill(missing: Sequence[LockedJar], directory: Path, fetch: Fetch) -> None:
    sys.stderr.write(f"fetching {len(missing)} jars, once, into {directory}\n")
    # Inside the cache, because a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=directory) as scratch:
        fetched = Path(scratch)
        fetch([jar.coordinate for jar in missing], fetched)
        for jar in missing:
            if not jar.is_intact(fetched):
                raise JarsError(
                    f"{jar.coordinate.file_name} is not the file that was locked",
                    detail=f"expected SHA-256 {jar.sha256}",
                    hint="remove it from the local Maven or Ivy repository and try again; "
                    "if the error comes again, the mirror in use serves another file",
                )
        for jar in missing:
            name = jar.coordinate.file_name
            (fetched / name).replace(directory / name)


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    with (directory / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
