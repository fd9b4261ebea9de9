"""What `pip install stilltide` brings: a small client, and one sentence for each missing extra."""

import json
import socket
from pathlib import Path

import pytest

from tests.support.packaging.building import ROOT, UV, build, ended, make_environment, run

DISTRIBUTIONS_MAX = 6
IMPORT_S_MAX = 0.35
ROUNDS = 5

USED = """
import time
began = time.process_time()
{imports}
print(time.process_time() - began)
"""
CLIENT = USED.format(imports="import stilltide; stilltide.TransactionClient")
LIBRARIES = USED.format(imports="import asyncio, confluent_kafka.admin, google.protobuf.message")
"""What no client can do without, as a measure of the machine."""

SLOWER_MAX = 3.0
"""The import of the client on a slow or busy machine, in times of `LIBRARIES`."""

REFUSED = """
import asyncio, sys
from stilltide import KafkaConfig, RetriableError, TransactionClient
from stilltide.connectors.kafka.connector import KafkaConnector

async def main() -> None:
    connector = KafkaConnector(KafkaConfig(sys.argv[1], request_timeout_s=1))
    async with TransactionClient(connector=connector):
        pass

try:
    asyncio.run(main())
except RetriableError as error:
    print(error)
"""

WHOLE = """
from stilltide.errors import ArgumentError
from stilltide.sync import Subscription, TransactionClient
from stilltide.testing import SyncMemoryCluster

with SyncMemoryCluster({"orders": 1}) as cluster:
    with TransactionClient(connector=cluster.connector) as client, client.transaction() as txn:
        txn.send("orders", b"order")
    with Subscription("orders", group="g", connector=cluster.connector) as orders:
        print(next(orders).value, txn.state)
"""

HINTS = """
from stilltide import StilltideError
for hint in ("see stilltide topics check", "run `stilltide worker`", "use `stilltide.sync`"):
    print(StilltideError("failed", hint=hint).hint)
"""

SETTINGS = """
import stilltide
try:
    stilltide.load_settings
except stilltide.MissingExtraError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it asks for, in the versions of the lock."""
    wheel = build(ROOT, tmp_path_factory.mktemp("built"), "--wheel")[".whl"]
    path = tmp_path_factory.mktemp("client") / "environment"
    install = make_environment(path)
    run(*install, wheel, "--constraint", ROOT / "requirements.lock")
    return path


@pytest.fixture(scope="module")
def with_cli(environment: Path) -> Path:
    """The same with the extra `cli`; for the last tests of this file."""
    with_extra = f"stilltide[cli] @ {distribution_url(environment)}"
    install = (UV, "pip", "install", "--quiet", "--python", environment / "bin/python")
    run(*install, with_extra, "--constraint", ROOT / "requirements.lock")
    return environment


def distribution_url(environment: Path) -> str:
    """Where the wheel was installed from."""
    (found,) = environment.glob("lib/python*/site-packages/stilltide-*.dist-info/direct_url.json")
    return json.loads(found.read_text())["url"]


def seconds(environment: Path, program: str) -> float:
    """The least processor time of a program."""
    return min(float(run(environment / "bin/python", "-c", program)) for _ in range(ROUNDS))


def test_a_client_is_few_distributions(environment: Path):
    """The client library and three others, as the client's lock says."""
    listed = json.loads(run(UV, "pip", "list", "--format", "json", "--python", environment))
    installed = {one["name"]: one["version"] for one in listed}
    del installed["stilltide"]
    lock = (ROOT / "requirements.client.lock").read_text()
    locked = dict(line.rstrip(" \\").split("==") for line in lock.splitlines() if "==" in line)
    assert installed == locked
    assert len(installed) + 1 <= DISTRIBUTIONS_MAX


def test_a_client_is_imported_fast(environment: Path):
    """0.35 s of a processor, or on a slower machine a few times what its libraries take."""
    limit_s = max(IMPORT_S_MAX, SLOWER_MAX * seconds(environment, LIBRARIES))
    assert seconds(environment, CLIENT) <= limit_s


def test_a_client_works_by_itself(environment: Path, tmp_path: Path):
    """A client whose broker is away says so by its typed error: no library is missing for that."""
    program = tmp_path / "refused.py"
    program.write_text(REFUSED)
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = run(environment / "bin/python", program, address)
    assert said.startswith(f"no broker answers at {address}\n")
    assert "stilltide " not in said  # a command that is not there


def test_a_hint_says_what_brings_the_command_that_it_names(environment: Path):
    """Where the command is not installed: that of the extra `cli`, and a worker."""
    said = run(environment / "bin/python", "-c", HINTS).splitlines()
    assert said == [
        "see stilltide topics check (pip install 'stilltide[cli]' brings the command)",
        "run `stilltide worker` (pip install 'stilltide[worker]' brings the command)",
        "use `stilltide.sync`",
    ]


def test_a_client_runs_transactions_in_unit_tests(environment: Path):
    """`stilltide.sync` and `stilltide.testing` need no extra."""
    said = run(environment / "bin/python", "-c", WHOLE)
    assert said.splitlines()[-1] == "b'order' committed"


def test_settings_name_their_extra(environment: Path):
    """A public name that needs an extra raises a typed error, not `ModuleNotFoundError`."""
    said = run(environment / "bin/python", "-c", SETTINGS)
    assert "`stilltide.load_settings` needs the extra `cli`" in said


@pytest.mark.parametrize("words", [[], ["--help"], ["txn", "list"], ["worker"]], ids=str)
def test_the_program_without_its_libraries_names_the_extra(environment: Path, words: list[str]):
    """Without click there is one sentence with the next step, and no traceback."""
    done = ended(environment / "bin/stilltide", *words)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "this command needs the extra `cli`, which is not installed: "
        "run pip install 'stilltide[cli]'\n"
    )


@pytest.mark.parametrize(
    ("words", "extra"),
    [(["worker"], "worker"), (["audit", "run", "--topics", "orders"], "spark")],
    ids=str,
)
def test_a_command_names_the_extra_that_it_needs(with_cli: Path, words: list[str], extra: str):
    """With the command line alone, a worker and an audit say what they need besides."""
    done = ended(with_cli / "bin/stilltide", *words)
    assert done.returncode == 1
    assert done.stderr == (
        f"this command needs the extra `{extra}`, which is not installed: "
        f"run pip install 'stilltide[{extra}]'\n"
    )


@pytest.mark.parametrize(
    "noun",
    ["acl", "config", "consume", "coordinator", "dead-letter", "doctor", "group", "index", "local",
     "native", "offset", "pending-ack", "produce", "publish", "repair", "replicate", "size",
     "snapshot", "topics", "txn", "txn-log"],
)  # fmt: skip
def test_the_command_line_needs_no_other_extra(with_cli: Path, noun: str):
    """Every other command can be loaded with the extra `cli` alone."""
    done = ended(with_cli / "bin/stilltide", noun, "--no-such-option")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Usage: stilltide {noun}")
