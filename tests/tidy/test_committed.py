"""Committed files hold nothing of one machine, and generated files are those of their sources."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT, at, committed

FORBIDDEN = {
    "work left undone": re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"),
    "a path of one machine": re.compile(r"(?<![\w.$}])/(?:ro" + r"ot|wo" + r"rk|ho" + r"me)\b"),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_committed_file_holds(what: str):
    """What holds on one machine, or is not finished, does not belong into the repository."""
    found: list[str] = []
    for path in committed():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # an image or a jar
        found += [at(path, n) for n, line in enumerate(lines, 1) if FORBIDDEN[what].search(line)]
    assert found == []


def test_generated_messages_are_those_of_their_sources(tmp_path: Path):
    """`make protos` was run after the last change of a `.proto` file."""
    protos = sorted(
        path.relative_to(ROOT) for path in (ROOT / "stilltide/schemas/v1").glob("*.proto")
    )
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=."]
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, *outputs, *map(str, protos)], cwd=ROOT, check=True)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*_pb2.py*")}
    kept = {name: (ROOT / name).read_text() for name in made}
    assert len(made) == 2 * len(protos)
    assert made == kept
    generated = {
        path.relative_to(ROOT) for path in (ROOT / "stilltide/schemas/v1").glob("*_pb2.py*")
    }
    assert generated == set(made), "generated from no source"
