"""`stilltide doctor`: checks this installation and its cluster, one thing after the other.

*Invariants*: nothing is written but questions to coordinators. A check that needs another one which
has failed is skipped, and says so; each finding has the next step.
"""

import asyncio
import platform
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from importlib.metadata import version
from typing import Any, NamedTuple

import click
import confluent_kafka

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.admin.brokers import broker_version
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.errors import JavaMissingError
from stilltide.connectors.local.jars import KAFKA_VERSIONS
from stilltide.connectors.local.java import find_java
from stilltide.connectors.ports.connector import closing
from stilltide.connectors.ports.readers import Fetching, TimedRecord
from stilltide.pipeline.cli.common.asking import COORDINATORS, cluster_options, command_settings
from stilltide.pipeline.cli.common.output import output_option, print_rows
from stilltide.pipeline.cli.topics import look
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.shared.named_partitions import all_partitions
from stilltide.pipeline.extras import installed_extras
from stilltide.schemas.coordinator.transactions import ListTransactions
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.topics import TXN_RESPONSES
from stilltide.schemas.values import Offset, OffsetRange

EXIT_FOUND = 3

CLOCK_S_MAX = 5.0
"""Difference of clocks from which on it is a finding: time-outs are of monotonic clocks, but the
times that people compare, and starts of groups by time, are of this one."""


class CheckState(StrEnum):
    """What a check says.

    Attributes:
        OK: nothing needs to be done.
        NOTE: something is missing that only some programs need.
        BAD: something needs a person.
        SKIPPED: a check that this one needs has failed.
    """

    OK = "ok"
    NOTE = "note"
    BAD = "bad"
    SKIPPED = "skipped"


class DoctorFinding(NamedTuple):
    """The result of a check.

    Attributes:
        check: its name.
        state: what it says.
        text: what was found.
        next_step: what to do; empty: nothing.
    """

    check: str
    state: CheckState
    text: str
    next_step: str = ""


@click.command(
    epilog="""\b
Exit codes:
  0  nothing needs a person
  1  the command failed; the error names the next step
  3  something needs a person; each such line names the next step

\b
Examples:
  stilltide doctor
  stilltide doctor --bootstrap-servers kafka-1:9092
  stilltide doctor -o json | jq '.[] | select(.state == "bad")'
"""
)
@cluster_options
@output_option
def doctor(output: str, timeout_s: float, **given: Any) -> int:
    """Check this installation and its cluster, and name the next step.

    The checks: versions, Java, the address, the brokers, the topics of Stilltide, the workers, and
    the clock of this machine against that of the brokers.
    """
    settings = command_settings(**given)
    findings = asyncio.run(_Examination(settings, timeout_s).run())
    print_rows([finding._asdict() for finding in findings], output)
    return EXIT_FOUND if any(finding.state is CheckState.BAD for finding in findings) else 0


class _Examination:
    """The checks of a cluster, of which each needs the ones before."""

    def __init__(self, settings: Settings, timeout_s: float) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._connector = KafkaConnector(settings.kafka)
        self._ahead_s: float | None = None

    async def run(self) -> list[DoctorFinding]:
        """The findings, in the order of the checks."""
        findings = [_versions(), _java()]
        checks: Sequence[tuple[str, Callable[[], Awaitable[DoctorFinding]]]] = (
            ("address", self._address),
            ("brokers", self._brokers),
            ("topics", self._topics),
            ("workers", self._workers),
            ("clock", self._clock),
        )
        failed = ""
        for name, check in checks:
            if failed:
                findings.append(DoctorFinding(name, CheckState.SKIPPED, f"needs {failed}"))
                continue
            try:
                findings.append(await check())
            except StilltideError as error:
                text = error.primary if not error.place else f"{error.place}: {error.primary}"
                findings.append(DoctorFinding(name, CheckState.BAD, text, error.hint))
            if findings[-1].state is CheckState.BAD:
                failed = name
        return findings

    async def _address(self) -> DoctorFinding:
        await self._connector.reach()
        return DoctorFinding(
            "address", CheckState.OK, f"{self._settings.bootstrap_servers} is reached"
        )

    async def _brokers(self) -> DoctorFinding:
        async with closing(self._connector.admin()) as admin:
            count = (await admin.broker_figures()).brokers
        kafka = await broker_version(self._settings.kafka)
        text = f"{count} up, Kafka {kafka}"
        if _ordered(kafka) < _ordered(KAFKA_VERSIONS[0]):
            oldest = f"upgrade the brokers to Kafka {KAFKA_VERSIONS[0]} or newer"
            return DoctorFinding("brokers", CheckState.BAD, text, oldest)
        return DoctorFinding("brokers", CheckState.OK, text)

    async def _topics(self) -> DoctorFinding:
        seen = await look(self._connector, self._settings)
        missing = [
            topic for topic in seen.findings if topic.state is None and not topic.is_kafkas_own
        ]
        short = [
            topic.spec.name for topic in seen.findings if topic.state is not None and not topic.good
        ]
        if missing:
            text = f"{len(missing)} topics of Stilltide are missing"
            return DoctorFinding(
                "topics", CheckState.BAD, text, "a worker creates them: stilltide worker"
            )
        if short:
            text = f"{len(short)} topics fall short of the settings, such as {short[0]}"
            return DoctorFinding("topics", CheckState.NOTE, text, "stilltide topics check")
        return DoctorFinding(
            "topics", CheckState.OK, "the topics of Stilltide are as the settings want"
        )

    async def _workers(self) -> DoctorFinding:
        """Asks each coordinator; the answers, which brokers have timed, show the clock, too."""
        clock = SystemClock()
        async with (
            closing(self._connector.admin()) as admin,
            Coordinators(self._connector, request_timeout_s=self._timeout_s) as coordinators,
        ):
            places = all_partitions((await admin.describe_topics([TXN_RESPONSES])).values())
            before = await admin.end_offsets(places)
            asked_ms = clock.now_ms()
            answers = await coordinators.ask_each(ListTransactions())
            answered_ms = clock.now_ms()
            after = await admin.end_offsets(places)
            ranges = [
                OffsetRange(data, Offset(start), after[data])
                for data, start in before.items()
                if data in after
            ]
            times_ms = await self._times_ms(ranges)
        self._ahead_s = _ahead_s(times_ms, asked_ms, answered_ms)
        silent = [number for number, answer in answers.items() if answer is None]
        if silent:
            text = f"no answer from {COORDINATORS} {', '.join(map(str, silent))}"
            return DoctorFinding(
                "workers", CheckState.BAD, text, "start a worker: stilltide worker"
            )
        took_ms = answered_ms - asked_ms
        text = f"all {len(answers)} {COORDINATORS} have answered within {took_ms} ms"
        return DoctorFinding("workers", CheckState.OK, text)

    async def _times_ms(self, ranges: Sequence[OffsetRange]) -> list[int]:
        """The times that brokers have given to records, as far as they are read in time."""
        times_ms: list[int] = []
        reader = self._connector.reader("doctor", timestamps=True, fetching=Fetching.SCANNING)
        async with closing(reader):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    async for batch in scan(reader, ranges):
                        times_ms += [
                            record.timestamp_ms
                            for record in batch
                            if isinstance(record, TimedRecord)
                        ]
        return times_ms

    async def _clock(self) -> DoctorFinding:
        ahead_s = self._ahead_s
        if ahead_s is None:
            return DoctorFinding(
                "clock", CheckState.NOTE, "no answer has shown the time of the brokers"
            )
        text = f"this machine is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'}"
        if abs(ahead_s) > CLOCK_S_MAX:
            step = "set the clocks by NTP, here and on the brokers"
            return DoctorFinding("clock", CheckState.BAD, f"{text} the brokers", step)
        return DoctorFinding("clock", CheckState.OK, f"within {CLOCK_S_MAX:g} s of the brokers")


def _ahead_s(times_ms: Sequence[int], asked_ms: int, answered_ms: int) -> float | None:
    """How much this machine's clock is ahead of the brokers', at least; None: no time is known."""
    if not times_ms:
        return None
    last_ms = max(times_ms)
    if last_ms < asked_ms:
        return (asked_ms - last_ms) / 1000
    return min(0.0, (answered_ms - last_ms) / 1000)


def _versions() -> DoctorFinding:
    client, library = confluent_kafka.version(), confluent_kafka.libversion()
    return DoctorFinding(
        "versions",
        CheckState.OK,
        f"stilltide {version('stilltide')} with {', '.join(installed_extras())}; "
        f"Python {platform.python_version()}; "
        f"confluent-kafka {_first(client)}, librdkafka {_first(library)}",
    )


def _first(answer: Any) -> str:
    """The text of a version, which some versions of the client tell beside a number."""
    return str(answer[0] if isinstance(answer, tuple) else answer)


def _java() -> DoctorFinding:
    try:
        java = find_java()
    except JavaMissingError as error:
        text = f"{error.primary}; nothing else needs it"
        return DoctorFinding("java", CheckState.NOTE, text, error.hint)
    return DoctorFinding("java", CheckState.OK, f"Java {java.major}: {java.path}")


def _ordered(kafka: str) -> tuple[int, ...]:
    return tuple(int(part) for part in kafka.split(".") if part.isdecimal())
