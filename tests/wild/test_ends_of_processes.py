"""A process had printed its error and then ended by SIGABRT, "double free or corruption (out)".

A link that was told to stop ended by SIGSEGV. Clients of Kafka outlived the interpreter, since they
waited for the last answers of a cluster that was away or refused the login: their threads used what
OpenSSL's exit handler had freed, and called an interpreter that was gone.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from stilltide.connectors.local.addresses import HOST

CANCELLED = """
import asyncio, atexit, os, sys, time
from contextlib import suppress
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector

def tell():
    until = time.monotonic() + 1  # the system lists a thread for a moment after its end
    while (threads := len(os.listdir("/proc/self/task"))) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    print(threads, "thread")

atexit.register(tell)

async def main():
    admin = KafkaConnector(KafkaConfig(sys.argv[1], request_timeout_s=3)).admin()
    with suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await admin.add_partitions("orders", 3)
    await admin.close()

asyncio.run(main())
"""
"""Cancels a change that no broker answers, and ends; Python runs what is registered at its end."""

HANDLED = """
import ctypes, sys
from stilltide.pipeline.cli.program import main

libc = ctypes.CDLL(None)
libc.strdup.restype = ctypes.c_void_p
libc.on_exit(libc.dprintf, ctypes.c_void_p(libc.strdup(b"C handlers ran")))
sys.argv = ["stilltide", "no-such-noun"]
main()
"""
"""The command with an exit handler of C, which is called with the exit code: 2 is stderr."""


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a listener that never answers."""
    with socket.create_server((HOST, 0)) as listener:
        yield f"{HOST}:{listener.getsockname()[1]}"


def python(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs a program."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_an_interpreter_outlives_the_clients_that_wait_for_answers(silent: str):
    """A client that was closed before its last answer is destroyed before the interpreter ends."""
    ended = python(CANCELLED, silent)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "1 thread\n"


def test_a_command_ends_without_the_exit_handlers_of_libraries():
    """Nothing that a thread of a client may still use is torn down at the end of a command."""
    ended = python(HANDLED)
    assert ended.returncode == 2
    assert "No such command" in ended.stderr
    assert "C handlers ran" not in ended.stderr
