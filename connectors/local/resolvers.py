"""Two ways to fetch jars by coordinate: Maven, and the Ivy that pyspark contains.

*Invariants*: neither follows dependencies, so both fetch exactly the requested files; the user's
own settings (Maven's settings.xml, Ivy's ivysettings.xml, Java's HTTPS options) apply.
"""

import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from stilltide.connectors.local.errors import JarsError
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
