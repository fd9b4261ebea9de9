"""A Spark cluster whose master, worker and driver are in different network namespaces.

A namespace has a loopback of its own, so nothing works that wrongly names 127.0.0.1.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pyspark
import pytest

from stilltide.connectors.local.java import find_java
from stilltide.pipeline.demo.worker_process import end_with_this_process
from tests.support.programs import program

HOME = Path(pyspark.__file__).parent
SUBMIT = str(HOME / "bin" / "spark-submit")
MASTER_PORT = 7077
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For every JVM of the cluster, executors too: they live for seconds."""

STEP_S = 60


class Network(NamedTuple):
    """Namespaces on one bridge, which is in a namespace of its own.

    In this machine's own namespace the firewall of a Docker engine would drop what the bridge
    passes on.

    Attributes:
        host: address of this machine's own namespace on the bridge.
        names: namespaces by role.
        addresses: their addresses by role.
    """

    host: str
    names: dict[str, str]
    addresses: dict[str, str]

    def command(self, role: str, *arguments: str) -> list[str]:
        """The command line that runs a program in the namespace of a role."""
        return [_ip(), "netns", "exec", self.names[role], *arguments]


class SparkCluster(NamedTuple):
    """A running cluster.

    Attributes:
        network: where it runs; the role `driver` is free.
        master: its master URL.
    """

    network: Network
    master: str


@contextmanager
def network(*roles: str) -> Iterator[Network]:
    """Namespaces for these roles; skips the test where the kernel refuses namespaces."""
    mark = f"st{os.getpid() % 100_000}"
    prefix = f"10.213.{os.getpid() % 250}"
    found = Network(
        f"{prefix}.1",
        {role: f"{mark}{role}" for role in roles},
        {role: f"{prefix}.{number}" for number, role in enumerate(roles, start=2)},
    )
    with ExitStack() as stack:
        hub = f"{mark}hub"
        try:
            _run("netns", "add", hub)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"the kernel refuses network namespaces: {error.stderr.strip()}")
        stack.callback(_run, "netns", "del", hub)
        _run("-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("-n", hub, "link", "set", "bridge", "up")
        # Deleting one end deletes the other; the end of a namespace may do so only later.
        stack.callback(_run, "link", "del", mark)
        _run("link", "add", mark, "type", "veth", "peer", "name", "host", "netns", hub)
        _run("-n", hub, "link", "set", "host", "master", "bridge", "up")
        _run("addr", "add", f"{found.host}/24", "dev", mark)
        _run("link", "set", mark, "up")
        for role, name in found.names.items():
            _run("netns", "add", name)
            stack.callback(_run, "netns", "del", name)
            inside = ("-n", name)
            port, peer = f"to-{role}", ("peer", "name", "eth0", "netns", name)
            _run("-n", hub, "link", "add", port, "type", "veth", *peer)
            _run("-n", hub, "link", "set", port, "master", "bridge", "up")
            _run(*inside, "addr", "add", f"{found.addresses[role]}/24", "dev", "eth0")
            _run(*inside, "link", "set", "eth0", "up")
            _run(*inside, "link", "set", "lo", "up")
        yield found


@contextmanager
def spark_cluster(directory: Path) -> Iterator[SparkCluster]:
    """A master and a worker of two cores, each in a namespace, and a namespace `driver`."""
    with network("master", "worker", "driver") as found, ExitStack() as stack:
        host, worker = found.addresses["master"], found.addresses["worker"]
        master = f"spark://{host}:{MASTER_PORT}"
        package = "org.apache.spark.deploy"
        of_master = [f"{package}.master.Master", "--port", str(MASTER_PORT)]
        of_worker = [f"{package}.worker.Worker", "--cores", "2", "--memory", "2g", master]
        of_worker += ["--work-dir", str(directory / "work")]
        for role, address, arguments, sign in (
            ("master", host, of_master, "New state: ALIVE"),
            ("worker", worker, of_worker, "Successfully registered with master"),
        ):
            program = [str(HOME / "bin" / "spark-class"), *arguments]
            command = found.command(role, *program, "--host", address, "--webui-port", "0")
            stack.enter_context(_service(command, address, sign))
        yield SparkCluster(found, master)


def environment(**more: str) -> dict[str, str]:
    """The variables of a Spark program on this machine."""
    java = {"SPARK_HOME": str(HOME), "JAVA_HOME": str(find_java().home)}
    java["JAVA_TOOL_OPTIONS"] = FAST_START
    root = str(Path(__file__).parents[3])
    return os.environ | java | {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": root} | more


@contextmanager
def _service(command: Sequence[str], address: str, sign: str) -> Iterator[None]:
    """A program that runs while the block does; the block begins when it has logged `sign`."""
    process = subprocess.Popen(
        command,
        env=environment(SPARK_LOCAL_IP=address),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    end_with_this_process(process.pid)
    try:
        lines = process.stdout
        assert lines is not None
        logged: list[str] = []
        for line in lines:
            logged.append(line)
            if sign in line:
                break
        else:
            pytest.fail("".join(logged))
        rest = Thread(target=lines.read)  # a full pipe would stop the program
        rest.start()
        yield
        process.terminate()
        rest.join(STEP_S)
    finally:
        process.kill()
        process.wait(STEP_S)


def _ip() -> str:
    """The program `ip`; installs Debian's package if there is none and the user may."""
    found = program(("ip", "/usr/sbin/ip", "/sbin/ip"), "iproute2")
    assert found, "no program `ip`: apt-get install iproute2"
    return found


def _run(*arguments: str) -> None:
    subprocess.run([_ip(), *arguments], check=True, capture_output=True, text=True, timeout=STEP_S)
