"""The reference of Kafka rights, from what `stilltide acl print` prints."""

from stilltide.pipeline.cli.acl import Component, LinkSide, Names, rights
from tests.site.reference.text import table, with_rules

_HEAD = """\
# Kafka rights

The least rights of each component, as `stilltide acl print` prints them
([security](../security.md#kafka-rights)). `TOPIC`, `GROUP`, `SOURCE` and `TARGET` are the names
that you give. Read, Write, Delete and Alter include Describe; DescribeConfigs does not.
AlterConfigs includes DescribeConfigs.

"""
_NAMES = {"topics": ("TOPIC",), "groups": ("GROUP",), "source": "SOURCE", "target": "TARGET"}


def page() -> str:
    """The text of the page."""
    rows: list[tuple[str, ...]] = []
    for component in Component:
        for side in LinkSide if component is Component.LINK else (LinkSide.SOURCE,):
            name = component.value + (f", {side.value}" if component is Component.LINK else "")
            for right in rights(component, Names(**_NAMES, side=side)):
                kind, resource, prefixed = right.resource
                shown = f"{kind.value.replace('-', ' ')} `{resource}{'*' if prefixed else ''}`"
                operations = ", ".join(right.operations)
                rows.append((name, shown, operations, with_rules(right.purpose)))
                name = ""
    return _HEAD + table(("component", "resource", "operations", "for"), rows)
