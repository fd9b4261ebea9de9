"""A local broker lives and dies with its owner, and keeps its data."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from stilltide.connectors.local.addresses import HOST
from stilltide.connectors.local.cluster import LocalCluster, make_class_archive
from stilltide.connectors.local.errors import (
    BrokerDownError,
    BrokerStartError,
    DataDirInUseError,
    PortTakenError,
)
from tests.support.processes.local import await_release, create_topic, read_values, write_values

VALUES = [b"one", b"two", b"three"]

_OWNER = """
import sys
from pathlib import Path
from stilltide.connectors.local.cluster import LocalCluster, make_class_archive
cluster = LocalCluster("a", Path(sys.argv[1]), fast_start=True)
cluster.start()
print(cluster.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the broker that these tests share, because they stop and kill it."""
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def own(data_dir: Path) -> Iterator[LocalCluster]:
    """A broker of this module's own."""
    cluster = LocalCluster("own", data_dir, fast_start=True)
    yield cluster
    cluster.stop()


@pytest.fixture
def running(own: LocalCluster) -> LocalCluster:
    """The module's broker, started when the last test left it down."""
    own.start()
    return own


def _answers(cluster: LocalCluster, timeout_s: float) -> bool:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    try:
        return bool(admin.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


def test_restart_keeps_data_and_address(running: LocalCluster, topic_name: str):
    """After an orderly restart records and address are the same, the process is another."""
    create_topic(running.bootstrap, topic_name)
    write_values(running.bootstrap, topic_name, VALUES)
    bootstrap, pid = running.bootstrap, running.pid
    running.stop()
    running.start()
    assert running.bootstrap == bootstrap
    assert running.pid != pid
    assert read_values(bootstrap, topic_name) == VALUES


def test_kill_keeps_data(running: LocalCluster, topic_name: str):
    """A killed broker is down at once, and has every acknowledged record when started again."""
    create_topic(running.bootstrap, topic_name)
    write_values(running.bootstrap, topic_name, VALUES)
    running.kill()
    assert not running.is_running
    with pytest.raises(BrokerDownError):
        running.pause()
    running.start()
    assert read_values(running.bootstrap, topic_name) == VALUES


def test_start_of_a_running_broker_changes_nothing(running: LocalCluster):
    """Starting twice is the same as starting once."""
    pid = running.pid
    running.start()
    assert running.pid == pid


def test_paused_broker_is_silent_until_resumed(running: LocalCluster):
    """A paused broker answers nothing; resumed, it answers again as the same process."""
    pid = running.pid
    running.pause()
    assert not _answers(running, timeout_s=1)
    running.resume()
    assert _answers(running, timeout_s=20)
    assert running.pid == pid


def test_paused_broker_can_be_stopped(running: LocalCluster):
    """Stopping does not hang on a broker that is frozen."""
    running.pause()
    running.stop()
    assert not running.is_running


def test_second_user_of_a_directory_is_refused(running: LocalCluster, data_dir: Path):
    """A directory in use is refused by name and address, and the first user is not disturbed."""
    with pytest.raises(DataDirInUseError) as caught:
        LocalCluster("other", data_dir).start()
    assert str(data_dir) in caught.value.primary
    assert running.bootstrap in caught.value.primary
    assert _answers(running, timeout_s=20)


def test_taken_port_is_refused(tmp_path: Path):
    """A given port on which another process listens is refused by number."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} is taken"):
            LocalCluster("a", tmp_path, port=port).start()


def test_bootstrap_before_the_first_start_is_an_error(tmp_path: Path):
    """A cluster that never ran has no address, and says so."""
    with pytest.raises(BrokerDownError, match="never started"):
        _ = LocalCluster("a", tmp_path).bootstrap


def test_failed_format_names_the_log(tmp_path: Path):
    """A JVM that cannot even format its storage is quoted, and its log named."""
    with pytest.raises(BrokerStartError) as caught:
        LocalCluster("a", tmp_path, heap="lots").start()
    assert "Invalid maximum heap size" in caught.value.detail
    assert str(tmp_path / "broker.log") in caught.value.hint


def test_early_death_quotes_and_names_the_log(own: LocalCluster, data_dir: Path):
    """A broker that dies while it starts gives its last words and the place of the rest."""
    own.start()
    own.stop()
    identity = data_dir / "kafka" / "meta.properties"
    good = identity.read_text()
    identity.write_text(good.replace("node.id=1", "node.id=7"))
    try:
        with pytest.raises(BrokerStartError) as caught:
            own.start()
    finally:
        identity.write_text(good)
    assert "configured node id" in caught.value.detail
    assert str(own.log_path) in caught.value.hint
    assert not own.is_running


def test_late_answer_is_bounded(own: LocalCluster):
    """A broker that does not answer in time is an error, and is not left behind."""
    own.stop()
    with pytest.raises(BrokerStartError, match="gave no answer"):
        own.start(timeout_s=0)
    assert not own.is_running


def test_broker_dies_with_a_killed_owner(data_dir: Path, own: LocalCluster):
    """SIGKILL of the owner, which can clean up nothing, still ends the broker."""
    own.stop()
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert int(owner.stdout.readline()) > 0
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        await_release(data_dir)
    own.start()
    assert own.is_running


def test_a_broker_starts_with_the_archive_of_its_classes(tmp_path: Path):
    """The JVM maps the archive."""
    archive = make_class_archive()
    assert archive.exists()
    with LocalCluster("a", tmp_path / "a") as cluster:
        assert str(archive) in Path(f"/proc/{cluster.pid}/maps").read_text()
