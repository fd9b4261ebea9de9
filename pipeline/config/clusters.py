"""Clusters by name: what a process of several clusters, such as a link, reads from one setting.

*Source*: architecture.md, Habits of the code (bad input names setting and hint).

*Invariants*: a name stands for one cluster; options of the connector's own are refused by it.
"""

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from stilltide.pipeline.errors import ConfigError

_EXAMPLE = "a=127.0.0.1:9092 b=127.0.0.1:9192"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")


class ClusterAddress(BaseModel):
    """How a cluster is reached.

    Attributes:
        bootstrap_servers: its brokers, `host:port`, several with commas.
        options: further librdkafka options, such as those of TLS and SASL.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap_servers: str
    options: Mapping[str, str] = {}


def parse_clusters(given: Any) -> dict[str, Any]:
    """Clusters by name, of `name=host:port[,host:port]` with spaces between, or of JSON.

    In JSON a cluster is its address, or an object with `bootstrap_servers` and `options`.

    Raises:
        ConfigError: neither of the two, a name that is none, or a name twice.
    """
    if isinstance(given, str):
        text = given.strip()
        pairs = _of_json(text) if text.startswith("{") else [_pair(one) for one in text.split()]
    else:
        pairs = list(dict(given).items())
    clusters: dict[str, Any] = {}
    for name, address in pairs:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is no name of a cluster", hint="letters, digits, dot, dash, underscore"
            )
        if name in clusters:
            raise ConfigError(f"two clusters are named {name!r}", hint="name each cluster once")
        clusters[name] = {"bootstrap_servers": address} if isinstance(address, str) else address
    return clusters


def unknown_cluster(name: str, known: Mapping[str, Any]) -> ConfigError:
    """The error of a name that stands for no cluster."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"set STILLTIDE_CLUSTERS or --clusters, such as {_EXAMPLE!r}"
    return ConfigError(
        f"unknown cluster {name!r}",
        detail=f"known are {', '.join(sorted(known)) or 'none'}",
        hint=f"did you mean {near[0]!r}?" if near else hint,
    )


def _of_json(text: str) -> list[tuple[str, Any]]:
    try:
        # As pairs, so that a name that comes twice is seen.
        found = json.loads(text, object_pairs_hook=_Pairs)
    except ValueError as error:
        raise ConfigError(
            "clusters is no valid JSON", detail=str(error), hint=f"simpler: {_EXAMPLE}"
        ) from error
    return [(name, _plain(value)) for name, value in found]


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON in its order."""


def _plain(value: Any) -> Any:
    return {name: _plain(one) for name, one in value} if isinstance(value, _Pairs) else value


def _pair(text: str) -> tuple[str, str]:
    name, given, address = text.partition("=")
    if not given:
        raise ConfigError(f"clusters holds {text!r}, which is not name=host:port", hint=_EXAMPLE)
    return name, address
