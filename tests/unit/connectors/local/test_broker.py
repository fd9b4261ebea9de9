"""The directory of a broker: its record, its ports, its lock."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stilltide.connectors.local import addresses
from stilltide.connectors.local.addresses import (
    HOST,
    PORT_MAX,
    PORT_MIN,
    BrokerRecord,
    free_port,
    is_free,
    require_free,
    server_properties,
)
from stilltide.connectors.local.broker import BrokerDir
from stilltide.connectors.local.errors import DataDirInUseError, PortTakenError
from stilltide.schemas.topics import ENTRY_BYTES_MAX

RECORD = BrokerRecord("a", 20_001, 20_002, "S" * 22, formatted=True, pid=4242)


def test_record_survives(tmp_path: Path):
    """What a directory remembers is read back as it was written; nothing is remembered at first."""
    directory = BrokerDir(tmp_path)
    assert directory.read_record() is None
    directory.write_record(RECORD)
    assert directory.read_record() == RECORD


def test_second_hold_is_refused_by_name(tmp_path: Path):
    """The second process reads which directory is in use, by whom and what to do."""
    directory = BrokerDir(tmp_path)
    directory.write_record(RECORD)
    held = directory.hold()
    assert directory.is_held()
    with pytest.raises(DataDirInUseError) as caught:
        BrokerDir(tmp_path).hold()
    assert str(tmp_path) in caught.value.primary
    assert RECORD.bootstrap in caught.value.primary
    assert caught.value.hint
    os.close(held)
    assert not directory.is_held()


def test_hold_forgets_the_dead_process(tmp_path: Path):
    """A new holder clears the last broker's process id, which may be a stranger's by now."""
    directory = BrokerDir(tmp_path)
    directory.write_record(RECORD)
    os.close(directory.hold())
    record = directory.read_record()
    assert record is not None
    assert record.pid == 0


def test_taken_port_is_named():
    """A port on which someone listens is refused, with the port and the next step."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTakenError) as caught:
            require_free(port)
    assert str(port) in caught.value.primary
    assert "--port" in caught.value.hint


def test_chosen_port_is_free_and_below_the_ephemeral_range():
    """A chosen port is not one that the system may give to an outgoing connection."""
    port = free_port()
    assert PORT_MIN <= port <= PORT_MAX
    assert is_free(port)


def test_a_chosen_port_is_not_chosen_again(monkeypatch: pytest.MonkeyPatch):
    """Nobody listens on the port yet, and still neither this process nor another one chooses it."""
    port = free_port()
    for bound in ("PORT_MIN", "PORT_MAX"):
        monkeypatch.setattr(addresses, bound, port)
    with pytest.raises(PortTakenError):
        free_port()
    code = f"at.PORT_MIN = at.PORT_MAX = {port}; at.free_port()"
    other = subprocess.run(
        [sys.executable, "-c", f"import {addresses.__name__} as at; {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 1
    assert "PortTakenError" in other.stderr


def test_an_error_says_more_than_the_lines_behind_it(tmp_path: Path):
    """The lines shown begin with the first error; without one they are the log's last lines."""
    directory = BrokerDir(tmp_path)
    before = [f"2026-01-01 00:00:00,000 INFO Log: {number}" for number in range(40)]
    error = ["2026-01-01 00:00:01,000 ERROR Server: no start", "java.net.BindException: in use"]
    after = [f"2026-01-01 00:00:02,000 INFO Server: end {number}" for number in range(40)]
    directory.log_path.write_text("\n".join([*before, *error, "\tat Server.java:7", *after]))
    shown = directory.failure_lines().splitlines()
    assert shown == [*error, *after[:13]]
    assert directory.failure_lines(directory.log_size - 8) == after[-1][-8:]
    directory.log_path.write_text("\n".join(before))
    assert directory.failure_lines().splitlines() == before[-15:]


def test_properties_admit_full_log_entries(tmp_path: Path):
    """The broker takes and serves the largest entry that the log's topics admit."""
    lines = server_properties(RECORD, tmp_path).splitlines()
    assert f"message.max.bytes={ENTRY_BYTES_MAX}" in lines
    assert f"replica.fetch.max.bytes={ENTRY_BYTES_MAX}" in lines
    assert f"advertised.listeners=PLAINTEXT://{RECORD.bootstrap}" in lines
