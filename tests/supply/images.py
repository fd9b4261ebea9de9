"""Writes deploy/images.env: the images of others by digest.

A digest comes from the registry alone, which `docker buildx` asks; without an answer nothing is
written.
"""

import re
import subprocess
import sys
from pathlib import Path

from tests.supply.locks import ROOT

PAGE = ROOT / "deploy/images.env"
UNKNOWN = 4
TIMEOUT_S = 120

_DEFAULT = re.compile(r"\$\{([A-Z_]*_?IMAGE):-([^}]+)\}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OURS = ("stilltide", "stilltide:spark")
_HEAD = """# Images by digest, written by `make pin-images`. To use them:
# docker compose --env-file deploy/images.env up --detach --wait
"""


class RegistryError(Exception):
    """A registry did not say the digest of an image."""


def images() -> dict[str, str]:
    """The images of others that docker-compose.yml uses, by the variable that replaces each."""
    found = dict(_DEFAULT.findall((ROOT / "docker-compose.yml").read_text()))
    return {name: image for name, image in sorted(found.items()) if image not in _OURS}


def digest(image: str) -> str:
    """The digest of an image for all processors, as its registry says.

    Raises:
        RegistryError: the registry cannot be reached or has no such image.
    """
    command = ["docker", "buildx", "imagetools", "inspect", image]
    asked = [*command, "--format", "{{.Manifest.Digest}}"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RegistryError(f"no digest of {image}: {error}") from error
    if done.returncode or not _DIGEST.fullmatch(done.stdout.strip()):
        raise RegistryError(f"no digest of {image}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def main(path: Path = PAGE) -> int:
    """Writes the file; returns the exit code."""
    try:
        pinned = {name: f"{image}@{digest(image)}" for name, image in images().items()}
    except RegistryError as error:
        sys.stderr.write(f"{path.name} was not written: {error}\n")
        return UNKNOWN
    path.write_text(_HEAD + "".join(f"{name}={image}\n" for name, image in pinned.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
