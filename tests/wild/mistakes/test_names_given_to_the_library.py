"""`Subscription(["orders"], group="")` ended the process by SIGABRT, without a word of Python.

The Kafka client library has assertions for some texts, reads address 0 for others (half of a
character), overruns for long names of topics, and cuts others short in silence: at a NUL, and at
spaces around a group's name, so that another group was joined.
"""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stilltide.connectors.errors import InvalidTextError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.names import check_name, check_option
from stilltide.pipeline.cli.main import cli
from tests.support.client_library.given_texts import BAD, FINE, KEYS, NAMES, NO_TOPICS, TOPICS
from tests.support.processes.child import Child

Outcomes = dict[str, dict[str, str]]
OF_VALUES = {"NUL", "half of a character", "other half"}
"""Texts that are no value of an option: line breaks are, in certificates."""


@pytest.fixture(scope="module")
def outcomes(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What became of each text, in a process of its own, which an assertion would end."""
    return asyncio.run(_given(bootstrap, tmp_path_factory.mktemp("texts") / "log"))


async def _given(bootstrap: str, log: Path) -> Outcomes:
    module = "tests.support.client_library.given_texts"
    async with Child.of_module(module, bootstrap, log_path=log) as child:
        line = await child.line()
        assert await child.ended() == 0, child.said.splitlines()[-3:]
    return json.loads(line)


@pytest.mark.parametrize("kind", NAMES)
def test_a_bad_name_is_refused_before_a_client_is_made(outcomes: Outcomes, kind: str) -> None:
    """Groups, client ids and transactional ids; unusual letters are allowed."""
    assert {outcomes[kind][name] for name in BAD} == {"InvalidTextError"}, outcomes[kind]
    assert {outcomes[kind][name] for name in FINE} == {"passed"}, outcomes[kind]


@pytest.mark.parametrize("kind", TOPICS)
def test_a_name_that_no_topic_has_is_refused(outcomes: Outcomes, kind: str) -> None:
    """Wherever a topic is read, written or changed."""
    assert set(outcomes[kind].values()) == {"InvalidTextError"}, outcomes[kind]


def test_a_question_about_a_name_that_no_topic_has_finds_none(outcomes: Outcomes) -> None:
    """A stranger's record may name such a topic, and must not end who asks for it."""
    assert outcomes["described_topic"] == dict.fromkeys(NO_TOPICS, "passed")


@pytest.mark.parametrize("kind", KEYS)
def test_a_bad_name_of_an_option_or_a_config_is_refused(outcomes: Outcomes, kind: str) -> None:
    """Options of clients, and configs of topics."""
    refused = {name: it for name, it in outcomes[kind].items() if name != "spaces"}
    assert set(refused.values()) == {"InvalidTextError"}, refused


@pytest.mark.parametrize("name", sorted(OF_VALUES))
def test_a_bad_value_of_an_option_is_refused_and_not_shown(name: str) -> None:
    """The value may be a password."""
    with pytest.raises(InvalidTextError, match=r"sasl\.password") as raised:
        KafkaConfig("127.0.0.1:9092", extra={"sasl.password": f"secret{BAD[name]}"})
    assert "secret" not in str(raised.value)
    check_option("ssl.certificate.pem", "-----BEGIN\n-----END\n")


@pytest.mark.parametrize("name", sorted(BAD))
def test_an_error_names_what_was_given_and_the_next_step(name: str) -> None:
    """In few words, however long the text is."""
    with pytest.raises(InvalidTextError, match=r"^`group` ") as raised:
        check_name(BAD[name], "`group`")
    assert raised.value.hint
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("text", ["", " ", "a\nb", "a\udcff", " a "])
def test_a_command_refuses_a_bad_text_as_wrong_usage(text: str) -> None:
    """Exit code 2, and the name of the argument."""
    result = CliRunner().invoke(cli, ["group", "describe", "orders", text])
    assert result.exit_code == 2
    assert "GROUP" in result.output
