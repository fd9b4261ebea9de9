"""Writes build/sbom/*.json: bills of materials in CycloneDX, of the wheel and the images.

*Source*: the locks; `cyclonedx-py` turns them into components with hashes. The bill of the wheel
is without extras. The image for Spark also gets the jars of its Spark.

*Refuses*: Debian's packages of the base images. A scanner of images finds them.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.supply.locks import CLIENT_LOCK, ROOT, SPARK_LOCK, WORKER_LOCK, spark_jars

FOLDER = ROOT / "build/sbom"
_LOCKS = {"wheel": CLIENT_LOCK, "image-worker": WORKER_LOCK, "image-spark": SPARK_LOCK}
_VERSION = "1.6"


def write(folder: Path) -> list[Path]:
    """Writes a bill for the wheel and for each image; returns the files.

    Raises:
        subprocess.CalledProcessError: `cyclonedx-py` refused a lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / f"{name}.json", lock) for name, lock in _LOCKS.items()]


def _write(path: Path, lock: Path) -> Path:
    kind = "library" if path.stem == "wheel" else "application"
    # A test validates the largest; to validate each would take half of a minute.
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", str(lock)]
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", kind, "--no-validate"]
    form = ["--spec-version", _VERSION, "--output-reproducible", "--output-file", str(path)]
    subprocess.run([*command, *options, *form], check=True)
    if lock == SPARK_LOCK:
        bill: dict[str, Any] = json.loads(path.read_text())
        bill["components"] += _jars()
        path.write_text(json.dumps(bill, indent=2) + "\n")
    return path


def _jars() -> list[dict[str, Any]]:
    return [
        {
            "type": "library",
            "bom-ref": f"jar-{jar.artifact}",
            "group": jar.group,
            "name": jar.artifact,
            "version": jar.version,
            "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
            "licenses": [{"license": {"id": "Apache-2.0"}}],
            "purl": f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}?type=jar",
        }
        for jar in spark_jars()
    ]


def main() -> None:
    """Writes the bills, and names them."""
    for path in write(FOLDER):
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
