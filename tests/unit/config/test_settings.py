"""Settings: read from the environment, bounded, never ignored."""

import re
from pathlib import Path

import pytest

from stilltide.connectors.kafka.security import SHARED
from stilltide.pipeline.config.loading import load_settings, load_with_origins
from stilltide.pipeline.config.settings import BOUNDS, Settings
from stilltide.pipeline.core.replicas import AUTOMATIC, WantedReplicas
from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.replication.origins import PublishRoute


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
    """The variables of the cache and of local brokers are no settings, and no mistake either."""
    monkeypatch.setenv("STILLTIDE_CACHE_DIR", "/nowhere")
    monkeypatch.setenv("STILLTIDE_KAFKA_VERSION", "4.0")
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


def test_replicas_are_automatic_or_numbers(monkeypatch: pytest.MonkeyPatch):
    """Both from a variable, where all is text, and as an option."""
    assert load_settings().replicas == WantedReplicas("auto", "auto")
    monkeypatch.setenv("STILLTIDE_REPLICATION_FACTOR", "3")
    monkeypatch.setenv("STILLTIDE_MIN_INSYNC_REPLICAS", "auto")
    assert load_settings().replicas == WantedReplicas(3, "auto")
    assert load_settings(min_insync_replicas="2").replicas == WantedReplicas(3, 2)
    assert load_settings(replication_factor="auto").replicas == AUTOMATIC


@pytest.mark.parametrize("name", ["replication_factor", "min_insync_replicas"])
def test_replicas_of_another_kind_are_refused(name: str):
    """The error says both of what they may be."""
    with pytest.raises(ConfigError, match=f"{name} cannot be 'many'") as caught:
        load_settings(**{name: "many"})
    assert "'auto'" in caught.value.detail
    assert "integer" in caught.value.detail


def test_more_replicas_in_sync_than_replicas_are_refused(monkeypatch: pytest.MonkeyPatch):
    """The error names the setting and where it came from; as many as replicas pass."""
    monkeypatch.setenv("STILLTIDE_MIN_INSYNC_REPLICAS", "3")
    assert load_settings(replication_factor=3).replicas == WantedReplicas(3, 3)
    with pytest.raises(ConfigError, match="min_insync_replicas is 3") as caught:
        load_settings(replication_factor=2)
    assert "STILLTIDE_MIN_INSYNC_REPLICAS" in caught.value.primary


@pytest.mark.parametrize("name", ["a\nb", "\x00", "a\x7f", "a" * 251])
def test_names_that_copies_cannot_carry_are_refused(name: str):
    """A name with control characters would make the `origin` of its copies one of applications."""
    with pytest.raises(ConfigError, match="no name of a cluster"):
        load_settings(cluster=name)


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
        ("a=h:1 b=h:1", "clusters a and b have the same address"),
        ("a", "entry 1 of clusters is not name=host:port"),
        ("a=h", "the address of cluster 'a' in clusters is not host:port"),
        ("a/b=h:1", "the name of a cluster in clusters is not valid: entry 1"),
        ("{", "not valid JSON"),
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


def test_publishes_are_named_with_commas():
    """Each once, ascending, blanks apart; a circle is refused before anything runs."""
    assert load_settings().publishes == []
    found = load_settings(publish=" b:c, a:b,b:c,").publishes
    assert found == [PublishRoute("a", "b"), PublishRoute("b", "c")]
    with pytest.raises(ConfigError, match="publish holds 'orders', which is not source:target"):
        load_settings(publish="orders")
    with pytest.raises(ConfigError, match=r"in a circle: a -> b -> a \(option\)"):
        load_settings(publish="a:b,b:a")
    with pytest.raises(ConfigError, match="'b:c', which is not a topic name"):
        load_settings(publish="a:b:c")


def test_what_is_replicated_from_must_be_known():
    """And another cluster than the worker's own."""
    clusters = "a=h:1 b=h:2"
    assert load_settings(clusters=clusters, replicate_from="b").replicate_from == "b"
    with pytest.raises(ConfigError, match="unknown cluster 'c'"):
        load_settings(clusters=clusters, replicate_from="b c")
    with pytest.raises(ConfigError, match="the worker's own cluster"):
        load_settings(clusters=clusters, replicate_from="a")


def test_the_leader_of_configs_must_be_known_and_what_is_left_alone_followed():
    """Of all clusters, the worker's own included; the error names what links follow."""
    clusters = "a=h:1 b=h:2"
    for name in ("a", "b"):
        load_settings(clusters=clusters, replicate_configs_from=name)
    with pytest.raises(ConfigError, match="unknown cluster 'c'"):
        load_settings(clusters=clusters, replicate_configs_from="c")
    settings = load_settings(replicate_configs_except="retention.ms orders-*:cleanup.policy")
    assert settings.left_alone.has("payments", "retention.ms")
    assert settings.left_alone.has("orders-1", "cleanup.policy")
    assert not settings.left_alone.has("payments", "cleanup.policy")
    with pytest.raises(ConfigError, match=r"'segment\.ms' names no config that links follow"):
        load_settings(replicate_configs_except="segment.ms")


def test_lines_are_taken_where_clients_can_reach_them_and_nobody_reads_along():
    """J4: an address to connect to; with TLS to Kafka, loopback alone."""
    load_settings(line_host="10.0.0.1", line_port=7000)
    load_settings(line_host="::", line_advertised="worker-1")
    with pytest.raises(ConfigError, match="to which no client can connect"):
        load_settings(line_host="::")
    load_settings(line_host="127.0.0.1", security_protocol="SSL")
    load_settings(line_host="localhost", security_protocol="SSL")
    with pytest.raises(ConfigError, match="and security_protocol is SSL"):
        load_settings(line_host="10.0.0.1", security_protocol="SSL")


def test_a_worker_goes_by_the_name_that_others_know():
    """Two clusters under one name would take each other's word for their own."""
    clusters = "a=h:1 b=h:2"
    load_settings(clusters=clusters, cluster="b", bootstrap_servers="h:2").check_own_name()
    load_settings(clusters=clusters, cluster="b", bootstrap_servers="inside:2").check_own_name()
    wrong = load_settings(clusters=clusters, bootstrap_servers="h:2")
    with pytest.raises(ConfigError, match="h:2 is cluster b, and cluster a here") as caught:
        wrong.check_own_name()
    assert "--cluster to b" in caught.value.hint


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of settings; the test writes it."""
    path = tmp_path / "stilltide.toml"
    monkeypatch.setenv("STILLTIDE_CONFIG", str(path))
    return path


def test_file_loses_to_environment_and_options(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
):
    """Defaults < file < environment < options; every value says where it came from."""
    settings_file.write_text(
        "partitions = 5\ncoordinators = 5\nweb_port = 7000\n"
        'replication_factor = 3\nmin_insync_replicas = "auto"\n'
    )
    monkeypatch.setenv("STILLTIDE_COORDINATORS", "6")
    monkeypatch.setenv("STILLTIDE_PARTITIONS", "6")
    settings, origins = load_with_origins(partitions=7)
    assert (settings.partitions, settings.coordinators, settings.web_port) == (7, 6, 7000)
    assert origins["partitions"] == "option"
    assert origins["coordinators"] == "STILLTIDE_COORDINATORS"
    assert origins["web_port"] == str(settings_file)
    assert settings.replicas == WantedReplicas(3, "auto")
    assert origins["replication_factor"] == str(settings_file)
    assert origins["cluster"] == "default"


def test_file_holds_the_names_of_librdkafka(settings_file: Path, tmp_path: Path):
    """Options of TLS and SASL are written with dots, and reach clients under these names."""
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    settings_file.write_text(
        'security.protocol = "SASL_SSL"\nsasl.mechanism = "PLAIN"\nsasl.username = "u"\n'
        f'sasl.password = "p"\nssl.ca.location = "{ca}"\n'
    )
    settings = load_settings()
    assert settings.kafka.extra == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": str(ca),
    }
    assert "'p'" not in repr(settings)
    assert settings.kafka.extra.keys() <= SHARED


@pytest.mark.parametrize(
    ("text", "part"),
    [("coordinator = 3", "coordinator "), ("ssl.ca = 'x'", "ssl_ca "), ("a b", "is not TOML")],
)
def test_file_that_is_not_understood_is_refused(settings_file: Path, text: str, part: str):
    """An unknown key or broken TOML names the file, and what to write instead."""
    settings_file.write_text(text)
    with pytest.raises(ConfigError, match=part) as caught:
        load_settings()
    assert str(settings_file) in caught.value.primary
    assert caught.value.hint


def test_missing_file_is_refused(settings_file: Path):
    """A file that was named and is not there is no empty one."""
    with pytest.raises(ConfigError, match="STILLTIDE_CONFIG") as caught:
        load_settings()
    assert str(settings_file) in caught.value.primary


@pytest.fixture
def scram(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of SCRAM but the password."""
    monkeypatch.setenv("STILLTIDE_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("STILLTIDE_SASL_MECHANISM", "SCRAM-SHA-256")
    monkeypatch.setenv("STILLTIDE_SASL_USERNAME", "u")


@pytest.mark.usefixtures("scram")
def test_secret_is_read_from_the_file_a_variable_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """NAME_FILE names a file with the value of NAME, without its last line break."""
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    monkeypatch.setenv("STILLTIDE_SASL_PASSWORD_FILE", str(secret))
    settings, origins = load_with_origins()
    assert settings.kafka_options["sasl.password"] == "hush"
    assert origins["sasl_password"] == f"STILLTIDE_SASL_PASSWORD_FILE={secret}"


@pytest.mark.usefixtures("scram")
def test_secret_given_twice_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Which of two is meant nobody can know."""
    monkeypatch.setenv("STILLTIDE_SASL_PASSWORD", "hush")
    monkeypatch.setenv("STILLTIDE_SASL_PASSWORD_FILE", str(tmp_path / "secret"))
    (tmp_path / "secret").write_text("hush")
    with pytest.raises(ConfigError, match="both STILLTIDE_SASL_PASSWORD and"):
        load_settings()


@pytest.mark.usefixtures("scram")
def test_secret_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Neither a password that is not set nor one whose file is away is taken for an empty one."""
    with pytest.raises(ConfigError, match="sasl_password is not set"):
        load_settings()
    monkeypatch.setenv("STILLTIDE_SASL_PASSWORD_FILE", str(tmp_path / "away"))
    with pytest.raises(ConfigError, match=r"STILLTIDE_SASL_PASSWORD_FILE names .*away"):
        load_settings()


def test_missing_ca_file_names_key_and_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """One line says which setting, from where, and the file."""
    monkeypatch.setenv("STILLTIDE_SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("STILLTIDE_SSL_CA_LOCATION", str(tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match=r"ssl_ca_location names .*ca\.pem") as caught:
        load_settings()
    assert "STILLTIDE_SSL_CA_LOCATION" in caught.value.primary


@pytest.mark.parametrize("name", ["sasl_username", "ssl_ca_location"])
def test_security_that_would_not_be_used_is_refused(name: str):
    """A setting of TLS or SASL without the protocol would protect nothing, so it is refused."""
    with pytest.raises(ConfigError, match=f"{name} is set, but security_protocol is PLAINTEXT"):
        load_settings(**{name: "x"})


def test_certificate_without_its_key_is_refused():
    """One of the two is of no use."""
    with pytest.raises(ConfigError, match="one is set and the other is not"):
        load_settings(security_protocol="SSL", ssl_certificate_location="x")


def test_security_holds_for_named_clusters_without_options_of_their_own():
    """One set of credentials serves all clusters; a cluster with options has those alone."""
    clusters = {"b": "h:1", "c": {"bootstrap_servers": "h:2", "options": {"x": "y"}}}
    settings = load_settings(
        clusters=clusters,
        security_protocol="SSL",
        ssl_endpoint_identification_algorithm="none",
    )
    assert settings.address_of("b").options == settings.kafka_options
    assert settings.address_of("b").options["security.protocol"] == "SSL"
    assert settings.address_of("c").options == {"x": "y"}
