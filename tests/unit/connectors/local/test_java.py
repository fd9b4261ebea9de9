"""Finding a Java that is new enough."""

from pathlib import Path

import pytest

from stilltide.connectors.local.errors import JavaMissingError
from stilltide.connectors.local.java import find_java, parse_major


def _fake_java(home: Path, version_line: str) -> Path:
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\necho '{version_line}' >&2\n")
    launcher.chmod(0o755)
    return launcher


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=1\nopenjdk version "11.0.2"', 11),
        ("no such thing", None),
    ],
)
def test_major_version(text: str, major: int | None):
    """The major version is read from every form that `java -version` has had."""
    assert parse_major(text) == major


def test_java_home_comes_first(tmp_path: Path):
    """JAVA_HOME wins over the PATH."""
    in_home = _fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    on_path = _fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert java == (in_home, 21)


def test_too_old_java_home_falls_back_to_the_path(tmp_path: Path):
    """A JAVA_HOME that is too old does not hide a good Java on the PATH."""
    _fake_java(tmp_path / "home", 'java version "1.8.0_1"')
    on_path = _fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert java == (on_path, 17)


def test_too_old_java_is_named(tmp_path: Path):
    """Too old a Java is refused, saying which was found and what to install."""
    found = _fake_java(tmp_path, 'openjdk version "11.0.2"')
    with pytest.raises(JavaMissingError) as caught:
        find_java({"PATH": str(found.parent)})
    assert f"{found} is Java 11" in caught.value.detail
    assert "openjdk-17" in caught.value.hint


def test_missing_java_says_what_to_install():
    """Without any Java the error says so, and what to install."""
    with pytest.raises(JavaMissingError) as caught:
        find_java({"PATH": ""})
    assert "no java on the PATH" in caught.value.detail
    assert "install" in caught.value.hint
