"""What happened in a world, event by event, for people who look for the cause of a failure."""

import asyncio
import html
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Event(NamedTuple):
    """One event: what a process or the network did, at a virtual time."""

    at_s: float
    process: str
    text: str

    @property
    def program(self) -> str:
        """The program of the process, without the number of its run."""
        return self.process.split(".")[0]

    @property
    def is_of_process(self) -> bool:
        """Whether a process did this, and not the world."""
        return "." in self.process

    def __str__(self) -> str:
        return f"{self.at_s:11.6f}  {self.process:12}  {self.text}"


PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 13px/1.4 system-ui; margin: 1em }}
li {{ white-space: pre-wrap }}
table {{ border-collapse: collapse; font: 11px/1.4 ui-monospace, monospace }}
th {{ position: sticky; top: 0; background: #fff; text-align: left; border-bottom: 1px solid }}
td, th {{ border-left: 1px solid #ddd; padding: 0 .5em; vertical-align: top; max-width: 30em;
  overflow-wrap: anywhere }}
tr.world {{ background: #fdd }}
tr.hidden {{ display: none }}
@media (prefers-color-scheme: dark) {{
  body, th {{ background: #111; color: #ddd }} td, th {{ border-color: #333 }}
  tr.world {{ background: #522 }} }}
</style><h1>{title}</h1><ul>{anomalies}</ul>
<p><label>Only rows with <input id="words" placeholder="txn-log client-1 kill"></label>
(any of the words)</p>
<table><thead><tr><th>s</th>{heads}</tr></thead><tbody>
{rows}
</tbody></table><script>
const rows = [...document.querySelectorAll("tbody tr")];
document.getElementById("words").addEventListener("input", (event) => {{
  const words = event.target.value.split(" ").filter((word) => word);
  for (const row of rows) row.classList.toggle("hidden", words.length > 0 &&
    !words.some((word) => row.textContent.includes(word) || row.dataset.process.includes(word)));
}});
</script>
"""


def page(title: str, events: Sequence[Event], anomalies: Iterable[str]) -> str:
    """The events as one HTML page: time goes down, and each program has a column.

    What befalls a program is a red row in the column of the program.
    """
    columns = list(dict.fromkeys(it.program for it in events))
    return PAGE.format(
        title=html.escape(title),
        anomalies="".join(f"<li>{html.escape(it)}</li>" for it in anomalies),
        heads="".join(f"<th>{html.escape(it)}</th>" for it in columns),
        rows="\n".join(_rows(events, columns)),
    )


def _rows(events: Sequence[Event], columns: list[str]) -> Iterator[str]:
    for event in events:
        before = "<td></td>" * columns.index(event.program)
        of_world = "" if event.is_of_process else ' class="world"'
        yield (
            f'<tr{of_world} data-process="{html.escape(event.process)}"><td>{event.at_s:.6f}</td>'
            f"{before}<td>{html.escape(event.text)}</td></tr>"
        )


class Trace:
    """The events of a world; takes none unless it is on, and then up to a million."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.events: list[Event] = []

    def note(self, process: str, text: str) -> None:
        """Adds an event."""
        if self.on and len(self.events) < EVENTS_MAX:
            self.events.append(Event(asyncio.get_running_loop().time(), process, text))


EVENTS_MAX = 1_000_000
