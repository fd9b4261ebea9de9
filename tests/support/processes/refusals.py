"""What a process says when one of its rights is missing, compared with the right."""

import re
from typing import NamedTuple

from stilltide.schemas.rights import Operation, Resource, ResourceKind

_SAID = re.compile(
    r"(?P<operation>\w+) on (?P<kind>topic|group|transactional id|cluster) (?P<name>\S+?)"
    r" is not allowed to (?P<principal>User:\w+)"
)

_INCLUDE_DESCRIBE = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)


class Said(NamedTuple):
    """A refusal that an error, a log line or a page names."""

    operation: str
    kind: str
    name: str
    principal: str


def refusals(text: str) -> set[Said]:
    """The refusals that a text names."""
    return {Said(*found.groups()) for found in _SAID.finditer(text)}


def names(text: str, user: str, resource: Resource, operation: Operation) -> bool:
    """Whether a text names the missing right: operation, resource and principal.

    A process that may not read a topic is often refused at its first look, which needs Describe.
    """
    fitting = {operation.value}
    if operation in _INCLUDE_DESCRIBE:
        fitting.add(Operation.DESCRIBE.value)
    elif operation is Operation.ALTER_CONFIGS:
        fitting.add(Operation.DESCRIBE_CONFIGS.value)
    kind = resource.kind.value.replace("-", " ")
    return any(
        one.operation in fitting
        and one.kind == kind
        and one.principal == f"User:{user}"
        and (one.name.startswith(resource.name) if resource.prefixed else one.name == resource.name)
        for one in refusals(text)
    )


def said_of(error: BaseException) -> str:
    """All that an error says, with its causes and the errors of a group."""
    told: list[str] = []
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None:
            told.append(f"{type(one).__name__}: {one}")
            left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return "\n".join(told)


def entry_id(component: str, resource: Resource, operation: Operation) -> str:
    """The name of the test without this entry."""
    star = "*" if resource.prefixed else ""
    kind = "" if resource.kind is ResourceKind.TOPIC else f"{resource.kind.value} "
    return f"{component} {operation.value} {kind}{resource.name}{star}"
