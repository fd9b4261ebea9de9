"""Secrets in settings: no output and no error of a program shows one."""

import json
import traceback
from pathlib import Path

import pytest

from stilltide.pipeline.cli.main import run
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.config.settings import SECRETS
from stilltide.pipeline.errors import ConfigError

HUSH = "hush-hush"

MISPLACED = [
    {"b": {"bootstrap_servers": "h:1", "sasl.password": HUSH}},
    {"b": {"bootstrap_servers": "h:1", "options": {"sasl.password": [HUSH]}}},
    {"b": {"bootstrap_servers": f"alice:{HUSH}@h:1"}},
    {"b": {"options": {"sasl.password": HUSH}}},
    {"b": {"bootstrap_servers": [HUSH]}},
    {"b": [HUSH]},
    {"sasl.password": HUSH},
    {f"sasl.password={HUSH}": "h:1"},
]


def everything_of(error: BaseException) -> str:
    """The error as the interpreter prints an uncaught one, with all of its causes."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "text",
    [
        *map(json.dumps, MISPLACED),
        json.dumps(MISPLACED[0])[:-1],  # not JSON
        json.dumps([MISPLACED[0]]),
        f"sasl.password={HUSH}",
        f"b=h:1 {HUSH}",
        f"b=h:1 pass/word={HUSH}",
    ],
)
def test_a_misplaced_secret_of_a_cluster_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
):
    """Neither by `config show`, nor by the error, nor by a traceback of an application."""
    monkeypatch.setenv("STILLTIDE_CLUSTERS", text)
    assert run(["config", "show", "--origin"]) == 1
    printed = capsys.readouterr()
    assert "clusters" in printed.err
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert HUSH not in printed.out + printed.err + everything_of(caught.value)


def test_the_place_of_a_misplaced_option_is_named():
    """The error says which key of which cluster is unknown."""
    with pytest.raises(ConfigError) as caught:
        load_settings(clusters=json.dumps(MISPLACED[0]))
    assert "b.sasl.password: extra inputs are not permitted" in caught.value.detail


def test_another_wrong_setting_does_not_show_a_secret(monkeypatch: pytest.MonkeyPatch):
    """An error about a first setting carries nothing of a second one, also not in its cause."""
    monkeypatch.setenv("STILLTIDE_CLUSTERS", json.dumps(MISPLACED[0]))
    with pytest.raises(ConfigError) as caught:
        load_settings(coordinators="many")
    assert HUSH not in everything_of(caught.value)


def test_settings_and_configs_do_not_show_secrets_as_text():
    """`repr` of the settings, of a cluster's address and of the Kafka config is without them."""
    clusters = {"b": {"bootstrap_servers": "h:1", "options": {"sasl.password": HUSH}}}
    settings = load_settings(
        clusters=clusters,
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="alice",
        sasl_password=HUSH,
    )
    assert settings.address_of("b").options["sasl.password"] == HUSH
    assert settings.kafka.extra["sasl.password"] == HUSH
    assert HUSH not in f"{settings!r} {settings} {settings.address_of('b')!r} {settings.kafka!r}"


def test_every_secret_is_known_as_one():
    """The list of secrets follows from the types of the settings."""
    assert {
        "clusters",
        "deciders",
        "metrics_token",
        "sasl_oauthbearer_client_secret",
        "sasl_password",
        "ssl_key_password",
    } == SECRETS


@pytest.mark.parametrize(
    "token", ["too-brief", "with a space in the middle", "snow-\u2603-in-november"]
)
def test_a_token_that_no_header_carries_is_refused_unseen(token: str):
    """Also one that is short enough to be guessed."""
    with pytest.raises(ConfigError, match="metrics_token is not 16 or more") as caught:
        load_settings(metrics_token=token)
    assert token not in everything_of(caught.value)


@pytest.mark.parametrize("hosts", ["worker-a:6066", "http://worker-a", "a,b"])
def test_allowed_hosts_are_names(hosts: str):
    """Without ports and schemes, which a comparison with a host name would never meet."""
    with pytest.raises(ConfigError, match="web_allowed_hosts holds"):
        load_settings(web_allowed_hosts=hosts)


PLAIN = {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": HUSH}
OAUTH = {
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauthbearer_client_id": "me",
    "sasl_oauthbearer_client_secret": HUSH,
    "sasl_oauthbearer_token_endpoint_url": "https://issuer.example/token",
}
OVER_HTTP = {"sasl_oauthbearer_token_endpoint_url": "http://issuer.example/token"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (PLAIN | {"security_protocol": "SASL_PLAINTEXT"}, ["sasl.password"]),
        (PLAIN | {"security_protocol": "SASL_SSL"}, []),
        (
            PLAIN | {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512"},
            [],
        ),
        (OAUTH | {"security_protocol": "SASL_SSL"}, []),
        (OAUTH | {"security_protocol": "SASL_PLAINTEXT"}, ["access tokens"]),
        (
            OAUTH | OVER_HTTP | {"security_protocol": "SASL_SSL"},
            ["sasl.oauthbearer.client.secret"],
        ),
    ],
)
def test_a_secret_that_travels_in_clear_is_warned_of(
    given: dict[str, str],
    named: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    """Each command says so on stderr; the secret is not in the line."""
    file = tmp_path / "settings.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()))
    monkeypatch.setenv("STILLTIDE_CONFIG", str(file))
    assert run(["config", "show", "-o", "json"]) == 0
    printed = capsys.readouterr()
    warned = [line for line in printed.err.splitlines() if "secret_in_clear" in line]
    assert len(warned) == len(named)
    assert all(name in line for name, line in zip(named, warned, strict=True))
    assert HUSH not in printed.out + printed.err


@pytest.mark.parametrize("name", sorted(OAUTH))
def test_oauth_needs_all_of_its_settings(name: str):
    """The error names the one that is missing."""
    with pytest.raises(ConfigError, match=f"{name} is not set|sasl_mechanism is"):
        load_settings(security_protocol="SASL_SSL", **{**OAUTH, name: None})


@pytest.mark.parametrize(
    "url", ["", "issuer.example", "ftp://issuer.example", "https://", f"https://a:{HUSH}@h/token"]
)
def test_a_token_endpoint_is_a_url_without_a_password(url: str):
    """An error about the URL does not show the URL."""
    given = OAUTH | {"sasl_oauthbearer_token_endpoint_url": url}
    with pytest.raises(ConfigError, match="is not a URL of a token endpoint") as caught:
        load_settings(security_protocol="SASL_SSL", **given)
    assert HUSH not in everything_of(caught.value)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (PLAIN | {"sasl_oauthbearer_scope": "x"}, "sasl_oauthbearer_scope"),
        (PLAIN | {"https_ca_location": "x"}, "https_ca_location"),
        (OAUTH | {"sasl_password": HUSH}, "sasl_password"),
    ],
)
def test_a_setting_of_another_mechanism_is_refused(given: dict[str, str], name: str):
    """It would have no effect."""
    with pytest.raises(ConfigError, match=f"{name} is set, but sasl_mechanism is"):
        load_settings(security_protocol="SASL_SSL", **given)


def test_oauth_becomes_options_of_librdkafka():
    """With librdkafka's own method of fetching tokens; dotted names of a file mean the same."""
    options = load_settings(security_protocol="SASL_SSL", **OAUTH).kafka_options
    assert options == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": HUSH,
        "sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
    }


def test_a_file_has_the_dotted_names_of_oauth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """As with the other options of librdkafka."""
    ca, file = tmp_path / "ca.pem", tmp_path / "settings.toml"
    ca.write_text("")
    dotted = {name.replace("_", "."): value for name, value in OAUTH.items()}
    dotted |= {"security.protocol": "SASL_SSL", "https.ca.location": str(ca)}
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in dotted.items()))
    monkeypatch.setenv("STILLTIDE_CONFIG", str(file))
    assert load_settings().kafka_options == {"sasl.oauthbearer.method": "oidc"} | dotted
