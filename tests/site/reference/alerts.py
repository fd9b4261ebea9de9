"""The reference of alerts, from the rules of Prometheus."""

from typing import Any

import yaml

from tests.site.reference.text import code
from tests.site.repository import ROOT

RULES = ROOT / "deploy/prometheus/alerts.yml"

_HEAD = """\
# Alerts

The rules of `deploy/prometheus/alerts.yml`. Each rule has the annotation `runbook`, which names the
entry of the [runbook](../runbook.md) for it.

"""


def rules() -> list[dict[str, Any]]:
    """The rules in the order of the file."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for rule in rules():
        name, notes = rule["alert"], rule["annotations"]
        after = f"for {rule['for']}" if "for" in rule else "at once"
        anchor = notes["runbook"].partition("#")[2]
        parts.append(
            f"## {name}\n\n{notes['description']}\n\n"
            f"Severity: {code(rule['labels']['severity'])}; fires {after}. "
            f"[What to do](../runbook.md#{anchor}).\n\n```promql\n{rule['expr']}\n```\n\n"
        )
    return "".join(parts)
