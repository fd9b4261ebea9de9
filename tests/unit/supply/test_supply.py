"""Licences, bills of materials, audits and digests of what is shipped."""

import json
import re
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.supply import audit, images, licences, sbom
from tests.supply.locks import CLIENT_LOCK, SPARK_LOCK, WORKER_LOCK, pins, spark_jars

COPYLEFT = re.compile(r"\b(?:AGPL|GPL|General Public)", re.IGNORECASE)
LESSER = re.compile(r"LGPL|Lesser", re.IGNORECASE)


def test_licences_are_listed():
    """`make licences` was run after the last change of a lock."""
    assert licences.PAGE.read_text() == licences.page()


def test_no_licence_asks_for_the_source_of_applications():
    """No package that is shipped has a licence as the GPL is."""
    rows = [line for line in licences.page().splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    for row in rows:
        assert not COPYLEFT.search(row) or LESSER.search(row), row


def test_bills_of_materials_name_what_is_locked(tmp_path: Path):
    """Each bill is valid CycloneDX with all that is locked, and hashes; Spark's has the jars."""
    locked = {"wheel": CLIENT_LOCK, "image-worker": WORKER_LOCK, "image-spark": SPARK_LOCK}
    written = sbom.write(tmp_path)
    assert [path.stem for path in written] == list(locked)
    for path in written:
        if path.stem == "image-spark":  # which has all that the others have
            assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text()) is None
        bill = json.loads(path.read_text())
        assert bill["metadata"]["component"]["name"] == "stilltide"
        named = {one["name"] for one in bill["components"]}
        jars = {jar.artifact for jar in spark_jars()} if path.stem == "image-spark" else set()
        assert named == set(pins(locked[path.stem])) | jars
        for component in bill["components"]:
            assert component["version"]
            hashed = component.get("hashes") or [
                one for reference in component["externalReferences"] for one in reference["hashes"]
            ]
            assert hashed, component["name"]


def test_jars_of_spark_are_of_the_version_of_pyspark():
    """Spark refuses, or fails with, a connector of another version."""
    versions = {jar.version for jar in spark_jars() if jar.group == "org.apache.spark"}
    assert versions == {pins(SPARK_LOCK)["pyspark"]}


def package(**more: object) -> dict[str, object]:
    """A package in a report of pip-audit."""
    return {"name": "click", "version": "8.1.7", **more}


@pytest.mark.parametrize(
    ("dependencies", "code", "told"),
    [
        ([package(vulns=[])], audit.CLEAN, "1 packages have no known vulnerability"),
        (
            [package(vulns=[{"id": "PYSEC-1", "fix_versions": ["9.0"]}])],
            audit.FOUND,
            "click 8.1.7: PYSEC-1, fixed in 9.0",
        ),
        ([{"name": "click", "skip_reason": "unknown"}], audit.UNKNOWN, "not audited: click"),
        ([], audit.UNKNOWN, "0 packages have no known vulnerability"),
    ],
)
def test_verdict_of_an_audit(dependencies: list[dict[str, object]], code: int, told: str):
    """Something found is 3; something that was not looked up is 4, not silence."""
    found = audit.verdict(json.dumps({"dependencies": dependencies, "fixes": []}), "")
    assert found.code == code
    assert told in found.lines


def test_an_audit_without_a_database_says_so():
    """A traceback is no report: the exit code is one of its own, and a sentence says why."""
    found = audit.verdict("", "Traceback ...\nrequests.exceptions.ConnectionError: no such host\n")
    assert found.code == audit.UNKNOWN
    assert found.lines == [
        "no package was audited: the database of vulnerabilities did not answer",
        "requests.exceptions.ConnectionError: no such host",
    ]


def test_every_image_of_others_can_be_pinned():
    """The compose file takes each from a variable; what has a digest has the tag of the file."""
    assert set(images.images()) == {
        "BASE_IMAGE",
        "GRAFANA_IMAGE",
        "JAEGER_IMAGE",
        "KAFKA_IMAGE",
        "POSTGRES_IMAGE",
        "PROMETHEUS_IMAGE",
    }
    if images.PAGE.exists():
        lines = [line for line in images.PAGE.read_text().splitlines() if "=" in line]
        pinned = dict(line.partition("@")[0].split("=") for line in lines if line[0] != "#")
        assert pinned == images.images()


def test_no_digest_is_written_without_a_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Without docker nothing is asked and nothing written; the exit code is one of its own."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert images.main(tmp_path / "images.env") == images.UNKNOWN
    assert "images.env was not written: no digest of python:3.11-slim-bookworm" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "images.env").exists()
