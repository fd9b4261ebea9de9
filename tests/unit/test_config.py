"""Settings: read from the environment, bounded, never ignored."""

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
