"""Kafka's own transactions in closed loops: by librdkafka's producers, and by Java's.

Java's producer is compiled from `java/NativeLoop.java`, beside the jars of the local brokers; where
there is no JDK, Java is not measured, and the case says so.
"""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

from confluent_kafka import Producer

from stilltide.connectors.local.jars import broker_jars
from stilltide.connectors.local.java import find_java
from stilltide.pipeline.cli.common.output import say
from tests.bench.harness import Run, middle, summary

TOPIC = "bench"
PARTITIONS = 3
RECORDS = 10
VALUE = b"x" * 100

SOURCE = Path(__file__).parent / "java" / "NativeLoop.java"
READY = "ready"
HEAP = "1g"
_LOG4J = "status=error\nrootLogger.level=off\n"

NativeRuns = Mapping[str, Mapping[int, Sequence[Run]]]
"""The runs by client and number of producers."""


class NativeLoop(Protocol):
    """Producers that commit one transaction after the other, each in a thread of its own."""

    @property
    def pid(self) -> int:
        """The process that they run in."""
        ...

    def run(self, producers: int, seconds: float) -> Run:
        """Uses the first `producers` of them; blocks."""
        ...


class LibrdkafkaLoop:
    """Producers of confluent-kafka in a process of their own, so that nobody pays for their rest.

    The constructor blocks until the brokers know all of them.
    """

    def __init__(self, stack: ExitStack, bootstrap: str, producers: int) -> None:
        started = ProcessPoolExecutor(1, get_context("spawn"), _connect, (bootstrap, producers))
        self._process = stack.enter_context(started)
        self._pid = self._process.submit(os.getpid).result()

    @property
    def pid(self) -> int:
        """See `NativeLoop`."""
        return self._pid

    def run(self, producers: int, seconds: float) -> Run:
        """See `NativeLoop`."""
        return self._process.submit(_commits, producers, seconds).result()


_producers: list[Producer] = []
"""Of the process of `LibrdkafkaLoop`."""


def _connect(bootstrap: str, producers: int) -> None:
    for number in range(producers):
        options = {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"bench-{number}",
            "linger.ms": 0,
            "log_level": 0,  # the brokers end before the producers
        }
        producer = Producer(options)
        producer.init_transactions(30)
        _producers.append(producer)


def _commits(producers: int, seconds: float) -> Run:
    used = _producers[:producers]
    latencies: list[list[float]] = [[] for _ in used]
    began = time.perf_counter()
    until = began + seconds
    threads = [
        threading.Thread(target=_commit, args=(*pair, until))
        for pair in zip(used, latencies, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return summary([it for one in latencies for it in one], time.perf_counter() - began)


def _commit(producer: Producer, took: list[float], until: float) -> None:
    while (start := time.perf_counter()) < until:
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce(TOPIC, VALUE, partition=number % PARTITIONS)
        producer.commit_transaction(30)
        took.append(time.perf_counter() - start)


class JavaLoop:
    """Producers of kafka-clients in a JVM of their own.

    Args:
        process: `NativeLoop` of Java, which has answered that it is ready.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """See `NativeLoop`."""
        return self._process.pid

    def run(self, producers: int, seconds: float) -> Run:
        """See `NativeLoop`."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        print(producers, seconds, file=orders, flush=True)
        answer = answers.readline().split()
        assert answer, "the JVM of the native producers has ended; its error is above"
        count, elapsed_s, p50_ms, p99_ms = map(float, answer)
        return Run(count / elapsed_s, p50_ms, p99_ms, int(count), {})


@contextmanager
def java_loop(bootstrap: str, directory: Path, producers: int) -> Iterator[JavaLoop | None]:
    """Java's producers from entry to exit; None: there is no JDK."""
    javac = find_java().path.with_name("javac")
    compiler = str(javac) if javac.exists() else shutil.which("javac")
    if compiler is None:
        say("there is no javac on this machine: Java's producer is not measured")
        yield None
        return
    jars = os.pathsep.join(map(str, broker_jars()))
    subprocess.run([compiler, "-cp", jars, "-d", str(directory), str(SOURCE)], check=True)
    log4j = directory / "producers-log4j2.properties"
    log4j.write_text(_LOG4J)
    command = [
        str(find_java().path),
        f"-Xmx{HEAP}",
        f"-Dlog4j2.configurationFile=file:{log4j}",
        *("-cp", os.pathsep.join([str(directory), jars]), "NativeLoop"),
        *(bootstrap, str(producers), TOPIC, str(PARTITIONS), str(RECORDS), str(len(VALUE))),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == READY
            yield JavaLoop(process)
        finally:
            process.kill()


def native_loops(
    stack: ExitStack, bootstrap: str, directory: Path, producers: int
) -> dict[str, NativeLoop]:
    """The loops that this machine can run, by client; `stack` ends them; blocks."""
    loops: dict[str, NativeLoop] = {"librdkafka": LibrdkafkaLoop(stack, bootstrap, producers)}
    java = stack.enter_context(java_loop(bootstrap, directory, producers))
    return loops if java is None else {**loops, "java": java}


def best(runs: Mapping[int, Sequence[Run]], callers: int) -> int:
    """The number of producers, at most `callers`, with the highest rate."""
    usable = [count for count in runs if count <= callers]
    return max(usable, key=lambda count: middle(list(runs[count]), "per_s"))


def strongest(runs: NativeRuns, callers: int) -> tuple[str, int]:
    """The client, and its number of producers up to `callers`, with the highest rate of all."""
    counts = {name: best(of, callers) for name, of in runs.items()}
    name = max(counts, key=lambda one: middle(list(runs[one][counts[one]]), "per_s"))
    return name, counts[name]
