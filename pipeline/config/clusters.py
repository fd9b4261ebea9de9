"""Clusters by name: the setting of a process that uses several clusters, such as a link.

*Source*: docs/internals/style.md (an error names the setting and a hint).

*Invariants*: a name means one cluster. The Kafka connector refuses options that it sets itself. No
error shows a part of the text, which may hold passwords of clusters.
"""

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field

from stilltide.pipeline.errors import ConfigError

_EXAMPLE = "a=127.0.0.1:9092 b=127.0.0.1:9192"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")


class ClusterAddress(BaseModel):
    """The address of a cluster.

    Attributes:
        bootstrap_servers: addresses `host:port` of brokers, separated by commas.
        options: further librdkafka options, such as those of TLS and SASL.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    bootstrap_servers: str
    options: Mapping[str, str] = Field(default={}, repr=False)


def parse_clusters(given: Any) -> dict[str, Any]:
    """Clusters by name, from `name=host:port[,host:port]` separated by spaces, or from JSON.

    In JSON a cluster is its address, or an object with `bootstrap_servers` and `options`.

    Raises:
        ConfigError: the text has neither form, a name is not valid, or a name comes twice.
    """
    if isinstance(given, str):
        text = given.strip()
        pairs = (
            _of_json(text) if text.startswith("{") else list(map(_pair, enumerate(text.split(), 1)))
        )
    elif isinstance(given, Mapping):
        pairs = list(cast("Mapping[Any, Any]", given).items())
    else:
        raise ConfigError(
            f"clusters is a {type(given).__name__}, not a text or clusters by name",
            hint=f"for example {_EXAMPLE!r}",
        )
    clusters: dict[str, Any] = {}
    for number, (name, address) in enumerate(pairs, 1):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"the name of a cluster in clusters is not valid: entry {number}",
                hint="use letters, digits, dot, dash and underscore, a hundred at most",
            )
        if name in clusters:
            raise ConfigError(f"two clusters are named {name!r}", hint="name each cluster once")
        clusters[name] = {"bootstrap_servers": address} if isinstance(address, str) else address
    return clusters


def address_in(given: Any, name: str) -> str | None:
    """The bootstrap servers of the named cluster in a value of `clusters`; None: it is not there.

    Raises as `parse_clusters`.
    """
    options = parse_clusters(given).get(name)
    return options.get("bootstrap_servers") if isinstance(options, Mapping) else None


def unknown_cluster(name: str, known: Mapping[str, Any]) -> ConfigError:
    """The error for a name that no cluster has."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"set STILLTIDE_CLUSTERS or --clusters, such as {_EXAMPLE!r}"
    return ConfigError(
        f"unknown cluster {name!r}",
        detail=f"known are {', '.join(sorted(known)) or 'none'}",
        hint=f"did you mean {near[0]!r}?" if near else hint,
    )


def _of_json(text: str) -> list[tuple[str, Any]]:
    try:
        # As pairs, so that a repeated name is noticed.
        clusters = json.loads(text, object_pairs_hook=_Pairs)
    except ValueError as error:
        raise ConfigError(
            "clusters is not valid JSON", detail=str(error), hint=f"a simpler form: {_EXAMPLE}"
        ) from None  # the cause carries the text
    return [(name, _plain(value)) for name, value in clusters]


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as pairs, in order and with repeated names."""


def _plain(value: Any) -> Any:
    return {name: _plain(one) for name, one in value} if isinstance(value, _Pairs) else value


def _pair(numbered: tuple[int, str]) -> tuple[str, str]:
    number, text = numbered
    name, given, address = text.partition("=")
    if not given:
        raise ConfigError(f"entry {number} of clusters is not name=host:port", hint=_EXAMPLE)
    return name, address
