"""The units of deploy/systemd: known directives, commands and settings that exist.

The names of directives are checked against a list, so that every machine checks the same; where
`systemd-analyze` is installed, that reads the units as well, with their values.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.config.settings import Settings
from tests.support.deploy.commands import unknown_variables, usage_error
from tests.support.deploy.units import (
    OLDEST,
    known_directives,
    read_environment,
    read_unit,
    values,
)

SYSTEMD = Path(__file__).parents[3] / "deploy/systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
DROP_INS = sorted(SYSTEMD.glob("*.conf"))
INSTALLED = "/opt/stilltide/bin/stilltide"
IGNORED = {"RestartSteps", "RestartMaxDelaySec"}
"""Directives that older versions ignore without harm: the delay between restarts stays short."""

HARDENING = "# The same in every unit of Stilltide from here on.\n"
EXPOSURE_MAX = 20
"""Tenths; `systemd-analyze security` calls up to 2.0 well protected."""


def by_name(path: Path) -> str:
    """As a reader would name it."""
    return path.name


def words(unit: Path) -> list[str]:
    """The command of a unit, with the variables of its sample files."""
    (command,) = values(read_unit(unit), "ExecStart")
    samples = read_environment(SYSTEMD / "link.env") | read_environment(SYSTEMD / "index.env")

    def sample(found: re.Match[str]) -> str:
        return samples[found[1] or found[2]]

    return shlex.split(re.sub(r"\$\{(\w+)\}|\$(\w+)", sample, command))


def test_the_units_were_found():
    """The pattern finds them, or the tests below would say nothing."""
    assert [unit.name for unit in UNITS] == [
        "stilltide-index.service",
        "stilltide-replicate@.service",
        "stilltide-worker.service",
    ]


@pytest.mark.parametrize("path", [*UNITS, *DROP_INS], ids=by_name)
def test_every_directive_exists_in_its_section(path: Path):
    """Systemd would ignore a misspelt directive, and the unit would be less protected."""
    known = known_directives()
    for directive in read_unit(path):
        since = known.get((directive.section, directive.name))
        assert since is not None, directive
        assert since == OLDEST or directive.name in IGNORED, directive


def test_units_are_those_that_systemd_reads(tmp_path: Path):
    """`systemd-analyze verify` has nothing to say but that an old version ignores the back-off."""
    if (analyze := shutil.which("systemd-analyze")) is None:
        return  # the list of directives is what remains on such a machine
    command = Path(sys.executable).parent / "stilltide"
    copies = [tmp_path / unit.name for unit in UNITS]
    for unit, copy in zip(UNITS, copies, strict=True):
        copy.write_text(unit.read_text().replace(INSTALLED, str(command)))
        for drop_in in DROP_INS:
            folder = tmp_path / f"{unit.name}.d"
            folder.mkdir()
            shutil.copy(drop_in, folder)
    done = subprocess.run(
        [analyze, "verify", "--man=no", *copies],
        capture_output=True,
        text=True,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        check=False,
    )
    said = done.stderr.splitlines()
    assert [line for line in said if not re.search("|".join(IGNORED), line)] == []
    assert done.returncode == 0
    for unit in copies:
        rated = [analyze, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit]
        done = subprocess.run(rated, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_units_share_restarts_and_hardening():
    """A line that one unit gets, all get."""
    shared = {unit.read_text().partition(HARDENING)[2] for unit in UNITS}
    assert len(shared) == 1
    (text,) = shared
    assert "Restart=always\n" in text
    assert "NoNewPrivileges=yes\n" in text
    assert "ProtectSystem=strict\n" in text


@pytest.mark.parametrize("unit", UNITS, ids=by_name)
def test_commands_exist(unit: Path):
    """The command line knows the command and every option of `ExecStart`."""
    program, *arguments = words(unit)
    assert program == INSTALLED
    assert usage_error(arguments) == ""


def test_a_misspelt_option_is_found():
    """What checks the commands fails, or the test above would say nothing."""
    assert "No such option" in usage_error(["worker", "--instanceid", "a"])


def test_variables_are_settings():
    """The product refuses a variable STILLTIDE_* that is no setting."""
    named = set(read_environment(SYSTEMD / "stilltide.env"))
    for path in (*UNITS, *DROP_INS):
        named |= set(re.findall(r"\b(STILLTIDE_\w+)=", path.read_text()))
    assert "STILLTIDE_WORKER_INSTANCE_ID" in named
    assert "STILLTIDE_SASL_PASSWORD_FILE" in named
    assert unknown_variables(named) == []


def test_the_sample_is_valid(monkeypatch: pytest.MonkeyPatch):
    """The settings that stand in the sample are accepted as they are."""
    text = (SYSTEMD / "stilltide.env").read_text()
    for name, value in re.findall(r"^(STILLTIDE_\w+)=(.*)$", text, re.MULTILINE):
        monkeypatch.setenv(name, value)
    assert isinstance(load_settings(), Settings)


@pytest.mark.parametrize("unit", UNITS, ids=by_name)
def test_credentials_are_what_variables_name(unit: Path):
    """Each file below the directory of credentials is one that `LoadCredential` puts there."""
    text = (SYSTEMD / "secrets.conf").read_text()
    loaded = set(
        re.findall(r"LoadCredential=([\w.]+):/etc/stilltide/secrets/\1$", text, re.MULTILINE)
    )
    assert set(re.findall(r"=%d/([\w.]+)", text)) == loaded != set()
    assert "EnvironmentFile=/etc/stilltide/stilltide.env\n" in unit.read_text()
