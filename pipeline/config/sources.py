"""The sources of settings in addition to options of commands: a file and the environment.

*Source*: the twelve-factor rule for the environment; the `*_FILE` variables of Docker's official
images, for secrets that are mounted as files.

*Invariants*: every value has its origin; a file that is named but cannot be read is an error.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_settings import BaseSettings, EnvSettingsSource

from stilltide.pipeline.errors import ConfigError

ENV_PREFIX = "STILLTIDE_"
FILE_SUFFIX = "_FILE"
CONFIG_VARIABLE = "STILLTIDE_CONFIG"
LOG_FORMAT_VARIABLE = "STILLTIDE_LOG_FORMAT"

_LIBRDKAFKA_TABLES = ("security", "sasl", "ssl", "https")
"""Tables that TOML makes of dotted names such as `ssl.ca.location`, which is one setting here."""


class Layer(NamedTuple):
    """Values by setting, and the origin of each in words."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]


def read_layers(settings: type[BaseSettings]) -> list[Layer]:
    """The file, then the variables that name files, then the variables; the last one wins.

    Raises:
        ConfigError: a file cannot be read or is not TOML, or a variable is set in both ways.
    """
    values = EnvSettingsSource(settings)()
    variables = Layer(values, {name: _variable(name) for name in values})
    files = _read_variable_files(list(settings.model_fields))
    if twice := sorted(files.values.keys() & values.keys()):
        name = _variable(twice[0])
        raise ConfigError(
            f"both {name} and {name}{FILE_SUFFIX} are set",
            hint="unset one of them",
        )
    return [_read_file(os.environ.get(CONFIG_VARIABLE)), files, variables]


def _variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _read_variable_files(names: list[str]) -> Layer:
    values: dict[str, str] = {}
    origins: dict[str, str] = {}
    for name in names:
        variable = _variable(name) + FILE_SUFFIX
        if path := os.environ.get(variable):
            values[name] = _text(path, variable).rstrip("\r\n")
            origins[name] = f"{variable}={path}"
    return Layer(values, origins)


def _read_file(path: str | None) -> Layer:
    if not path:
        return Layer({}, {})
    text = _text(path, CONFIG_VARIABLE)
    try:
        values = _joined(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path} ({CONFIG_VARIABLE}) is not TOML",
            detail=str(error),
            hint='a line is name = value, with text in quotes: cluster = "a"',
        ) from error
    return Layer(values, dict.fromkeys(values, path))


def _text(path: str, variable: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{variable} names {path}, which cannot be read",
            detail=error.strerror or "" if isinstance(error, OSError) else "it is not UTF-8 text",
            hint="put the file there, readable by this process's user, or name another",
        ) from error


def _joined(table: Mapping[str, Any]) -> dict[str, Any]:
    """The values with librdkafka's dotted names as names of settings; other tables stay."""
    joined: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and name.partition("_")[0] in _LIBRDKAFKA_TABLES:
            joined |= _joined({f"{name}_{below}": one for below, one in value.items()})
        else:
            joined[name] = value
    return joined
