"""Checks of settings that concern more than one setting, or more than a type.

*Invariants*: an error names the setting, the reason and the next step, and never the value of a
secret.
"""

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stilltide.connectors.kafka.security import sent_in_clear
from stilltide.connectors.names import is_server, split_servers
from stilltide.pipeline.config.bounds import Bound
from stilltide.pipeline.config.sources import CONFIG_VARIABLE, ENV_PREFIX
from stilltide.pipeline.core.links.configs import LeftAlone
from stilltide.pipeline.core.links.publishes import check_publish
from stilltide.pipeline.core.replicas import WantedReplicas
from stilltide.pipeline.errors import ConfigError, PublishError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.topics import PREFIX, is_topic_name

log = get_logger(__name__)

OAUTH = "OAUTHBEARER"
TOKEN_LENGTH_MIN = 16

_PASSWORD_NEEDS = ("sasl_username", "sasl_password")
_OAUTH_PREFIX = "sasl_oauthbearer_"
_OAUTH_NEEDS = (
    "sasl_oauthbearer_client_id",
    "sasl_oauthbearer_client_secret",
    "sasl_oauthbearer_token_endpoint_url",
)
_FILES = ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location", "https_ca_location")
_HOST_PATTERN = re.compile(r"[A-Za-z0-9.*?_-]+")
_TOKEN = re.compile(r"[!-~]+")


class SettingError(ConfigError):
    """A fault of the setting `name`; `load_settings` adds the origin of its value."""

    def __init__(self, name: str, primary: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(primary, detail=detail, hint=hint)
        self.name = name


def where(name: str) -> str:
    """The hint that says how a setting is set."""
    return (
        f"set it with {ENV_PREFIX}{name.upper()}, in the file that {CONFIG_VARIABLE} names, "
        "or by the option of the command"
    )


_CLUSTER_CHARACTERS_MAX = 250
"""The `origin` header of a copy has room for as many characters in UTF-8."""


def check_bound(name: str, value: float, bound: Bound) -> None:
    """Passes a value that lies within its bounds."""
    if bound.least <= value <= bound.most:
        return
    side, limit = ("least", bound.least) if value < bound.least else ("most", bound.most)
    raise SettingError(
        name,
        f"{name} is {value}, but the {side} is {limit}",
        detail=bound.reason,
        hint=where(name),
    )


def check_replicas(wanted: WantedReplicas) -> None:
    """Passes replicas that can be in sync."""
    try:
        wanted.check()
    except ConfigError as error:
        raise SettingError(
            "min_insync_replicas", error.primary, detail=error.detail, hint=error.hint
        ) from error


def check_server(server: str) -> None:
    """Passes `host:port` of the setting `bootstrap_servers`."""
    if not is_server(server):
        raise SettingError(
            "bootstrap_servers",
            f"bootstrap_servers holds {server!r}, which is not host:port",
            hint="for example 127.0.0.1:9092; separate several by commas",
        )


def check_own_cluster(name: str) -> None:
    """Passes a name that copies of links can carry in their `origin` header (H1)."""
    if not name or not name.isprintable() or len(name) > _CLUSTER_CHARACTERS_MAX:
        raise SettingError(
            "cluster",
            f"cluster is {name[:100]!r}, which is no name of a cluster",
            hint="use letters, digits, dot, dash and underscore, a hundred at most",
        )


def check_cluster(name: str, bootstrap_servers: str) -> None:
    """Passes the addresses of a cluster; the text may be a misplaced secret and is not shown."""
    if not all(is_server(server) for server in split_servers(bootstrap_servers)):
        raise SettingError(
            "clusters",
            f"the address of cluster {name!r} in clusters is not host:port",
            detail="the address is not shown, because the setting may hold secrets",
            hint="for example a=127.0.0.1:9092; separate several brokers by commas",
        )


def check_topic(topic: str) -> None:
    """Passes the name of a topic."""
    if not is_topic_name(topic):
        raise SettingError(
            "index_topics",
            f"index_topics holds {topic!r}, which is not a topic name",
            hint="separate topics by commas, for example orders,payments",
        )


def parse_publishes(text: str) -> list[PublishRoute]:
    """The publishes of the setting `publish`, each once, ascending."""
    routes: set[PublishRoute] = set()
    for entry in filter(None, map(str.strip, text.split(","))):
        source, colon, target = map(str.strip, entry.partition(":"))
        if not colon:
            raise SettingError(
                "publish",
                f"publish holds {entry!r}, which is not source:target",
                hint="for example orders:orders.committed; separate several by commas",
            )
        routes.add(PublishRoute(source, target))
    return sorted(routes)


def check_publishes(publishes: Sequence[PublishRoute]) -> None:
    """Passes publishes that may run together."""
    for publish in publishes:
        try:
            check_publish(publish, publishes)
        except PublishError as error:
            raise SettingError(
                "publish", error.primary, detail=error.detail, hint=error.hint
            ) from error


def parse_left_alone(text: str) -> LeftAlone:
    """The configs in the setting `replicate_configs_except`."""
    try:
        return LeftAlone.parsed(text.split())
    except ConfigError as error:
        name = "replicate_configs_except"
        raise SettingError(name, error.primary, detail=error.detail, hint=error.hint) from error


def check_web(hosts: Sequence[str], token: str | None) -> None:
    """Passes host names or patterns, and a token that a header can carry."""
    for host in hosts:
        if not _HOST_PATTERN.fullmatch(host):
            raise SettingError(
                "web_allowed_hosts",
                f"web_allowed_hosts holds {host!r}, which is not a host name or pattern",
                hint="names are without a port and separated by spaces, for example worker-*",
            )
    if token is not None and not (_TOKEN.fullmatch(token) and len(token) >= TOKEN_LENGTH_MIN):
        raise SettingError(
            "metrics_token",
            f"metrics_token is not {TOKEN_LENGTH_MIN} or more visible ASCII characters",
            detail="a header carries no other characters, and a shorter token can be guessed",
            hint="make one with: openssl rand -hex 32",
        )


def check_line(host: str, advertised: str, protocol: str | None) -> None:
    """Passes an address of direct lines that clients can reach, and that exposes no secret (J4)."""
    if not host:
        return
    if host in ("0.0.0.0", "::") and not advertised:  # noqa: S104 - asked, not bound
        raise SettingError(
            "line_advertised",
            f"line_host is {host}, to which no client can connect",
            hint="set line_advertised to a name or address of this machine",
        )
    if protocol in ("SSL", "SASL_SSL") and not _is_loopback(host):
        raise SettingError(
            "line_host",
            f"line_host is {host}, and security_protocol is {protocol}",
            detail="direct lines have no TLS, and requests hold ids of clients, which are secret",
            hint="leave line_host empty: clients then ask by topic",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_security(values: Mapping[str, Any]) -> None:
    """Passes settings of TLS and SASL of which each has an effect and none is missing.

    Args:
        values: the settings of `SECURITY` by name, None for one that is not set.
    """
    protocol = values["security_protocol"] or "PLAINTEXT"
    mechanism = values["sasl_mechanism"] if "SASL" in protocol else None
    _check_effects(values, protocol, mechanism)
    if "SASL" in protocol:
        needs = _OAUTH_NEEDS if mechanism == OAUTH else _PASSWORD_NEEDS
        for name in ("sasl_mechanism", *needs):
            if values[name] is None:
                raise SettingError(
                    name,
                    f"security_protocol is {protocol}, but {name} is not set",
                    hint=where(name),
                )
    if mechanism == OAUTH:
        _check_endpoint(values["sasl_oauthbearer_token_endpoint_url"])
    if (values["ssl_certificate_location"] is None) != (values["ssl_key_location"] is None):
        raise SettingError(
            "ssl_certificate_location",
            "of ssl_certificate_location and ssl_key_location one is set and the other is not",
            hint="set both, or neither",
        )
    for name in _FILES:
        if values[name] is not None:
            _check_file(name, values[name])


def _check_effects(values: Mapping[str, Any], protocol: str, mechanism: str | None) -> None:
    """Refuses a setting that the protocol or the mechanism does not use."""
    given = [name for name, value in values.items() if value is not None]
    for name in given:
        prefix = name.partition("_")[0].upper()
        if prefix in ("SASL", "SSL") and prefix not in protocol:
            raise SettingError(
                name,
                f"{name} is set, but security_protocol is {protocol}",
                detail="the setting has no effect there: the connection would lack its protection",
                hint=f"set security_protocol to one with {prefix}, or leave {name} out",
            )
        is_oauth = name.startswith(_OAUTH_PREFIX) or name == "https_ca_location"
        if (is_oauth and mechanism != OAUTH) or (name in _PASSWORD_NEEDS and mechanism == OAUTH):
            raise SettingError(
                name,
                f"{name} is set, but sasl_mechanism is {mechanism or 'not set'}",
                detail="the setting has no effect there",
                hint=f"set sasl_mechanism to {OAUTH if is_oauth else 'PLAIN or SCRAM'}, "
                f"or leave {name} out",
            )


def _check_endpoint(url: str) -> None:
    name = "sasl_oauthbearer_token_endpoint_url"
    try:
        parts = urlsplit(url)
        is_plain = parts.username is None and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_plain = None, False
    if parts is None or not is_plain or parts.scheme not in ("https", "http"):
        raise SettingError(
            name,
            f"{name} is not a URL of a token endpoint",
            detail="it begins with https:// (or http://) and a host, and holds no user or password",
            hint="for example https://login.example.com/oauth2/token",
        )


def _check_file(name: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise SettingError(
            name,
            f"{name} names {path}, which cannot be read",
            detail=str(error.strerror),
            hint="put the PEM file there, readable by this process's user, or name another",
        ) from error


def check_prefix(prefix: str) -> None:
    """Passes a beginning of names that Kafka allows and that begins with `stilltide.` (C15)."""
    if not prefix.startswith(PREFIX) or not is_topic_name(prefix):
        raise SettingError(
            "own_prefix",
            f"own_prefix is {prefix!r}; it begins with {PREFIX}",
            detail="one prefixed right covers the groups and transactional ids of Stilltide",
            hint=f"lengthen the default, for example {PREFIX}team-a.",
        )


def warn_of_clear_text(options: Mapping[str, Mapping[str, str]]) -> None:
    """Logs each secret that the clients of a cluster would send without encryption.

    Args:
        options: librdkafka's options, by cluster.
    """
    for cluster, given in options.items():
        for name in sent_in_clear(given):
            log.warning(
                "secret_in_clear",
                cluster=cluster,
                sent=name,
                hint="use SASL_SSL and https, or a network that is encrypted itself",
            )
