"""Settings: read from the environment, bounded, never ignored."""

import re

import pytest

from pipeline.config import BOUNDS, Settings, load_settings
from pipeline.errors import ConfigError


def test_defaults_lie_within_their_bounds():
    """Without any setting the defaults are in force, and they pass the validation table."""
    settings = load_settings()
    assert settings.bootstrap_servers == "127.0.0.1:9092"
    assert settings.txn_log_batch_records_max == 512
    assert set(BOUNDS) <= set(Settings.model_fields)


def test_given_beats_environment_beats_default(monkeypatch: pytest.MonkeyPatch):
    """An option given wins over its variable, which wins over the default; None is not given."""
    monkeypatch.setenv("STILLTIDE_COORDINATORS", "8")
    monkeypatch.setenv("STILLTIDE_PARTITIONS", "6")
    settings = load_settings(partitions=2, coordinators=None)
    assert (settings.coordinators, settings.partitions) == (8, 2)


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch):
    """An empty variable, as compose files leave behind, means the default."""
    monkeypatch.setenv("STILLTIDE_CLUSTER", "")
    assert load_settings().cluster == "a"


def test_unknown_variable_names_the_nearest(monkeypatch: pytest.MonkeyPatch):
    """A misspelt variable is refused with the name that was meant."""
    monkeypatch.setenv("STILLTIDE_BOOTSTRAP_SERVER", "127.0.0.1:1")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert "STILLTIDE_BOOTSTRAP_SERVER" in caught.value.primary
    assert "STILLTIDE_BOOTSTRAP_SERVERS" in caught.value.hint


def test_unknown_key_names_the_nearest():
    """A misspelt keyword is refused with the name that was meant."""
    with pytest.raises(ConfigError) as caught:
        load_settings(coordinator=3)
    assert "coordinator" in caught.value.primary
    assert "coordinators?" in caught.value.hint


def test_variables_read_elsewhere_are_not_unknown(monkeypatch: pytest.MonkeyPatch):
    """The cache directory's variable is no setting, and no mistake either."""
    monkeypatch.setenv("STILLTIDE_CACHE_DIR", "/nowhere")
    assert load_settings().cluster == "a"


@pytest.mark.parametrize("name", sorted(BOUNDS))
@pytest.mark.parametrize("side", ["least", "most"])
def test_bounds_are_inclusive_and_explained(name: str, side: str):
    """The bound itself passes; one step past it is refused, naming value, bound and reason."""
    bound = BOUNDS[name]
    limit = int(getattr(bound, side))
    past = limit - 1 if side == "least" else limit + 1
    assert getattr(load_settings(**{name: limit}), name) == limit
    with pytest.raises(ConfigError) as caught:
        load_settings(**{name: past})
    assert name in caught.value.primary
    assert str(past) in caught.value.primary
    assert str(limit) in caught.value.primary
    assert caught.value.detail == bound.reason


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STILLTIDE_COORDINATORS", "many"),
        ("STILLTIDE_TXN_LOG_BATCHING_ENABLED", "perhaps"),
        ("STILLTIDE_TXN_LOG_FLUSH_MODE", "lazy"),
    ],
)
def test_value_of_another_type_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str):
    """A value that is not of the setting's type is refused, naming setting and value."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert variable.removeprefix("STILLTIDE_").lower() in caught.value.primary
    assert repr(value) in caught.value.primary
    assert variable in caught.value.hint


@pytest.mark.parametrize("servers", ["broker", "broker:", ":9092", "broker:0", "a:1,", "a:1 b:2"])
def test_malformed_bootstrap_servers_are_refused(servers: str):
    """Every server must be host:port, so that a typo is not taken for a broker that is away."""
    with pytest.raises(ConfigError, match="not host:port"):
        load_settings(bootstrap_servers=servers)


def test_several_bootstrap_servers_pass():
    """Servers are separated by commas; an IPv6 host keeps its own colons."""
    servers = "a.example:9092, [::1]:9093"
    assert load_settings(bootstrap_servers=servers).bootstrap_servers == servers


def test_settings_are_frozen():
    """Nobody changes a setting after it was read."""
    with pytest.raises(ValueError, match="frozen"):
        load_settings().cluster = "b"


@pytest.mark.parametrize(
    "text",
    [
        "a=h:1 b=h:2,h:3",
        '{"a": "h:1", "b": {"bootstrap_servers": "h:2,h:3"}}',
    ],
)
def test_clusters_are_named(monkeypatch: pytest.MonkeyPatch, text: str):
    """As pairs or as JSON; each has its own addresses."""
    monkeypatch.setenv("STILLTIDE_CLUSTERS", text)
    settings = load_settings()
    assert settings.address_of("a").bootstrap_servers == "h:1"
    assert settings.address_of("b").bootstrap_servers == "h:2,h:3"


def test_clusters_may_have_client_options():
    """Those of TLS and SASL, for instance."""
    text = '{"a": {"bootstrap_servers": "h:1", "options": {"security.protocol": "SSL"}}}'
    assert load_settings(clusters=text).address_of("a").options == {"security.protocol": "SSL"}


def test_the_own_cluster_needs_no_other_name():
    """What `cluster` and `bootstrap_servers` say is a cluster too."""
    settings = load_settings(cluster="z", bootstrap_servers="h:1")
    assert settings.address_of("z").bootstrap_servers == "h:1"


def test_an_unknown_cluster_names_the_nearest():
    """And the ones that are known."""
    settings = load_settings(clusters="east=h:1 west=h:2")
    with pytest.raises(ConfigError, match="unknown cluster 'eas'") as caught:
        settings.address_of("eas")
    assert "east, west" in caught.value.detail
    assert "'east'" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a=h:1 a=h:2", "two clusters are named 'a'"),
        ('{"a": "h:1", "a": "h:2"}', "two clusters are named 'a'"),
        ("a", "'a', which is not name=host:port"),
        ("a=h", "'h', which is not host:port"),
        ("a/b=h:1", "'a/b' is no name"),
        ("{", "no valid JSON"),
        ('{"a": {"bootstrap_servers": "h:1", "color": 1}}', "clusters"),
    ],
)
def test_clusters_that_cannot_be_understood_are_refused(text: str, named: str):
    """With what is wrong."""
    with pytest.raises(ConfigError, match=re.escape(named)):
        load_settings(clusters=text)


def test_topics_to_index_are_named_with_commas():
    """Each once, ascending, blanks apart; a name that no topic can have is refused."""
    assert load_settings().indexed_topics == []
    assert load_settings(index_topics=" b, a,b,").indexed_topics == ["a", "b"]
    with pytest.raises(ConfigError, match="index_topics holds 'a b'"):
        load_settings(index_topics="c,a b")
