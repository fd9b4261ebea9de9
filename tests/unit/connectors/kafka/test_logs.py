import logging
import pickle

import pytest

from stilltide.connectors.kafka.logs import LOGGER, PERIOD_S, ClientLog, LineLimit

TEMPLATE = "%s [%s] %s"


def test_a_flood_becomes_one_line_a_period_with_its_count(caplog: pytest.LogCaptureFixture):
    """The first line passes; the next one after the period tells how many were held back."""
    now_s = [0.0]
    log = ClientLog("w", LineLimit(now_s=lambda: now_s[0]))
    with caplog.at_level(logging.INFO, LOGGER.name):
        for _ in range(100):
            log.log(logging.ERROR, TEMPLATE, "FAIL", "rdkafka#1", "refused")
        now_s[0] = PERIOD_S
        log.log(logging.ERROR, TEMPLATE, "FAIL", "rdkafka#1", "refused")
        now_s[0] = 3 * PERIOD_S
        log.log(logging.ERROR, TEMPLATE, "FAIL", "rdkafka#1", "refused")
    assert caplog.messages == [
        "w: FAIL: refused",
        "w: FAIL: refused (99 more like it since)",
        "w: FAIL: refused",
    ]


def test_lines_of_other_kinds_pass(caplog: pytest.LogCaptureFixture):
    """Each facility has its own limit, and keeps its level."""
    log = ClientLog("w", LineLimit(now_s=lambda: 0.0))
    with caplog.at_level(logging.INFO, LOGGER.name):
        log.log(logging.ERROR, TEMPLATE, "FAIL", "rdkafka#1", "refused")
        log.log(logging.WARNING, TEMPLATE, "MAXPOLL", "rdkafka#1", "too slow")
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]


def test_a_broker_that_has_just_started_is_no_warning(caplog: pytest.LogCaptureFixture):
    """Its coordinators load, and the producer asks again; a refusal is told as ever."""
    log = ClientLog("w", LineLimit(now_s=lambda: 0.0))
    early = "Failed to acquire idempotence PID: Coordinator load in progress: retrying"
    with caplog.at_level(logging.INFO, LOGGER.name):
        log.log(logging.WARNING, TEMPLATE, "GETPID", "rdkafka#1", early)
        log.log(logging.WARNING, TEMPLATE, "GETPID", "rdkafka#1", "not allowed")
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]


def test_clients_of_a_cluster_share_the_limit(caplog: pytest.LogCaptureFixture):
    """The line of one client counts for another client, which may be made again and again."""
    limit = LineLimit(now_s=lambda: 0.0)
    with caplog.at_level(logging.INFO, LOGGER.name):
        for number in range(5):
            ClientLog(f"w-{number}", limit).log(
                logging.ERROR, TEMPLATE, "FAIL", "rdkafka#1", "refused"
            )
    assert caplog.messages == ["w-0: FAIL: refused"]


def test_a_limit_travels_to_another_process():
    """Configs are sent to the executors of Spark; the limit there counts by itself."""
    assert isinstance(pickle.loads(pickle.dumps(LineLimit())), LineLimit)  # noqa: S301 - our own bytes
