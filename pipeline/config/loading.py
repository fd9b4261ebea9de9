"""Loads the settings in force, once for each process: the command passes them on as arguments.

*Invariants*: an unknown name, also of an environment variable or in a file, is refused, never
ignored; the value of a secret is in no error.
"""

import difflib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stilltide.pipeline.config.checks import SettingError, warn_of_clear_text, where
from stilltide.pipeline.config.clusters import address_in
from stilltide.pipeline.config.settings import OWN_CLUSTER, SECRETS, Settings
from stilltide.pipeline.config.sources import (
    CONFIG_VARIABLE,
    ENV_PREFIX,
    FILE_SUFFIX,
    LOG_FORMAT_VARIABLE,
    Layer,
    read_layers,
)
from stilltide.pipeline.errors import ConfigError

_OTHER_VARIABLES = frozenset(
    {"STILLTIDE_CACHE_DIR", "STILLTIDE_KAFKA_VERSION", LOG_FORMAT_VARIABLE, CONFIG_VARIABLE}
)
"""Variables with the prefix STILLTIDE_ that are no settings."""

_DEFAULT = "default"
_OPTION = "option"


class Loaded(NamedTuple):
    """The settings in force, and the origin of each: option, a variable, a file or default."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings(**given: Any) -> Settings:
    """The settings in force: the arguments, else the environment (STILLTIDE_*), else the file that
    STILLTIDE_CONFIG names, else the defaults.

    An argument of None counts as not given, like an option of a command that was left out.

    Raises:
        ConfigError: a name is unknown (suggests the nearest), a value is not of the setting's type
            or out of its bounds (names bound and reason), or a file cannot be read; names the
            origin.
    """  # noqa: D205 - the order is the promise
    return load_with_origins(**given).settings


def load_with_origins(**given: Any) -> Loaded:
    """As `load_settings`, with the origin of every setting."""
    given = {name: value for name, value in given.items() if value is not None}
    names = list(Settings.model_fields)
    _check_variables(names)
    layers = [*read_layers(Settings), Layer(given, dict.fromkeys(given, _OPTION))]
    values: dict[str, Any] = {}
    origins = dict.fromkeys(names, _DEFAULT)
    for layer in layers:
        for name in layer.values:
            if name not in origins:
                raise _unknown(f"{name} ({layer.origins[name]})", name, names)
        values |= layer.values
        origins |= layer.origins
    if "bootstrap_servers" not in values and "clusters" in values:
        address = address_in(values["clusters"], values.get("cluster", OWN_CLUSTER))
        if address is not None:
            values["bootstrap_servers"] = address
            origins["bootstrap_servers"] = f"clusters, {origins['clusters']}"
    try:
        settings = Settings(**values)
    except SettingError as error:
        raise ConfigError(
            f"{error.primary} ({origins[error.name]})", detail=error.detail, hint=error.hint
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        is_secret = name in SECRETS
        why = [_reason(one) for one in error.errors() if one["loc"][0] == name]
        raise ConfigError(
            f"{name} cannot be {'that' if is_secret else repr(first['input'])} ({origins[name]})",
            detail=", or ".join(why),
            hint=where(name),
        ) from None if is_secret else error
    options = {it: one.options for it, one in settings.clusters.items() if one.options}
    warn_of_clear_text({settings.cluster: settings.kafka_options} | options)
    return Loaded(settings, origins)


def _reason(fault: ErrorDetails) -> str:
    """What is wrong, with the place below the setting; the input is not part of it."""
    place = ".".join(map(str, fault["loc"][1:])) if fault["loc"][0] == "clusters" else ""
    return f"{place}: {fault['msg'].lower()}" if place else fault["msg"].lower()


def _check_variables(names: list[str]) -> None:
    known = [ENV_PREFIX + name.upper() for name in names]
    for variable in os.environ:
        shouted = variable.upper()
        if (
            shouted.startswith(ENV_PREFIX)
            and shouted not in known
            and variable.removesuffix(FILE_SUFFIX) not in known
            and variable not in _OTHER_VARIABLES
        ):
            raise _unknown(f"variable {variable}", shouted, known)


def _unknown(shown: str, name: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return ConfigError(f"unknown setting: {shown}", hint=f"did you mean {near[0]}?")
