"""`stilltide acl print`: formats and refused names."""

import json
import shlex
from collections.abc import Iterator
from itertools import pairwise

import pytest
import yaml
from click.testing import CliRunner

from stilltide.pipeline.cli.acl import acl
from stilltide.schemas.rights import (
    CLUSTER_NAME,
    NEEDS,
    Component,
    LinkSide,
    Names,
    Operation,
    Resource,
    entries,
    rights,
)

SHOWN = Names(topics=("TOPIC",), groups=("GROUP",), source="SOURCE", target="TARGET")
OPTIONS = {
    "topics": ["--topic", "orders-*"],
    "groups": ["--group", "bill ing"],
    "source": ["--source", "a"],
    "target": ["--target", "b"],
}


def printed(*words: str, code: int = 0) -> str:
    """What the command prints."""
    done = CliRunner().invoke(acl, ["print", *words])
    assert done.exit_code == code, done.output
    return done.output


def options(component: Component) -> list[str]:
    """The options without which the rights of a component are not known."""
    needed = [word for name in NEEDS[component] for word in OPTIONS[name]]
    return ["--component", component.value, "--principal", "User:o'hara", *needed]


def all_rights(names: Names) -> Iterator[tuple[str, list[tuple[Resource, Operation]]]]:
    """The entries of each component, and of both sides of a link."""
    for component in Component:
        for side in LinkSide:
            chosen = Names(**{**vars(names), "side": side})
            yield component.value, entries(rights(component, chosen))


@pytest.mark.parametrize("component", Component)
def test_each_format_has_the_same_rights(component: Component):
    """A table for people, JSON, commands of Kafka that a shell reads, a user of Strimzi."""
    asked = options(component)
    found = json.loads(printed(*asked, "-o", "json"))
    assert {one["principal"] for one in found} == {"User:o'hara"}
    count = sum(len(one["operations"]) for one in found)
    commands = [shlex.split(it) for it in printed(*asked, "-o", "kafka-acls").splitlines()]
    assert len(commands) == count
    assert {words[0] for words in commands} == {"kafka-acls.sh"}
    named = {
        (right, words[words.index("--operation") + 1])
        for words in commands
        for option, right in pairwise(words)
        if option in ("--topic", "--group", "--transactional-id")
    }
    named |= {
        (CLUSTER_NAME, words[words.index("--operation") + 1])
        for words in commands
        if "--cluster" in words
    }
    assert named == {(one["name"], it) for one in found for it in one["operations"]}
    user = yaml.safe_load(printed(*asked, "-o", "strimzi"))
    assert (user["apiVersion"], user["kind"]) == ("kafka.strimzi.io/v1beta2", "KafkaUser")
    authorization = user["spec"]["authorization"]
    assert authorization["type"] == "simple"
    acls = authorization["acls"]
    assert [(it["resource"].get("name", CLUSTER_NAME), it["operations"]) for it in acls] == [
        (one["name"], one["operations"]) for one in found
    ]
    assert found[0]["purpose"] in printed(*asked)


def test_no_right_is_on_everything_or_listed_twice():
    """Names are chosen by options; what another operation includes is not listed."""
    for component, found in all_rights(SHOWN):
        assert len(found) == len({*found}), component
        assert all(resource.name for resource, _ in found), component
        for resource, operation in found:
            if operation in (Operation.READ, Operation.WRITE, Operation.ALTER):
                assert (resource, Operation.DESCRIBE) not in found, component


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--component", "reader", "--topic", "orders"], "need --group"),
        (["--component", "worker"], "need --topic"),
        (["--component", "worker", "--topic", "*"], "--topic '*'"),
        (["--component", "worker", "--topic", "a*b"], "--topic 'a*b'"),
        (["--component", "link", "--topic", "orders"], "need --source"),
        (["--component", "worker", "--topic", "a", "--principal", "ada"], "User:ada"),
        (["--component", "baker", "--topic", "a"], "'baker' is not one of"),
    ],
)
def test_wrong_usage_is_exit_code_2(words: list[str], said: str):
    """A name that is missing, or one that means everything."""
    assert said in printed(*words, code=2)
