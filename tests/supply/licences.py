"""Writes docs/licences.md: the licence of each package that applications and images install.

*Source*: the metadata of the installed packages, and the locks.
"""

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from tests.supply.locks import CLIENT_LOCK, ROOT, SPARK_LOCK, WORKER_LOCK, pins, spark_jars

PAGE = ROOT / "docs/licences.md"

_HEAD = """# Licences

`make licences` writes this page from the locks and the metadata of the packages. Stilltide itself
has the licence [Apache-2.0](../LICENSE).

"""
_FOOT = """
The jars are projects of the Apache Software Foundation, and of Delta Lake. PySpark contains further
jars; their licences are in the folder `licenses` of the package. The base images contain Debian's
packages, whose licences are in `/usr/share/doc` there.
"""
_TABLE = "| package | version | licence |\n| --- | --- | --- |\n"
_OTHER_SYSTEM = "not installed on Linux"
_LICENCE_MAX = 60


def page() -> str:
    """The page as it should be."""
    client, worker, spark = map(pins, (CLIENT_LOCK, WORKER_LOCK, SPARK_LOCK))
    more = {name: version for name, version in spark.items() if name not in worker}
    jars = "".join(
        f"| `{jar.group}:{jar.artifact}` | {jar.version} | Apache-2.0 |\n" for jar in spark_jars()
    )
    return (
        f"{_HEAD}## Client library\n\n`pip install stilltide` without an extra.\n\n"
        f"{_TABLE}{_rows(client)}\n"
        f"## Image `stilltide`\n\n{_TABLE}{_rows(worker)}\n"
        f"## Image `stilltide:spark`, in addition\n\n{_TABLE}{_rows(more)}{jars}{_FOOT}"
    )


def licence(package: Distribution) -> str:
    """The licence of a package: its SPDX expression, else its classifiers, else its own words."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [
        str(one).rpartition(" :: ")[2]
        for one in metadata.get_all("Classifier") or []
        if str(one).startswith("License :: ")
    ]
    named = [one for one in classifiers if one != "OSI Approved"]
    if named:
        return ", ".join(named)
    words = str(metadata.get("License") or "").strip().partition("\n")[0]
    assert words, f"{package.name} names no licence"
    return words[:_LICENCE_MAX]


def _rows(packages: dict[str, str]) -> str:
    return "".join(
        f"| `{name}` | {version} | {_licence(name)} |\n" for name, version in packages.items()
    )


def _licence(name: str) -> str:
    try:
        return re.sub(r"\|", "/", licence(distribution(name)))
    except PackageNotFoundError:
        return _OTHER_SYSTEM


def main(path: Path = PAGE) -> None:
    """Writes the page."""
    path.write_text(page())


if __name__ == "__main__":
    main()
