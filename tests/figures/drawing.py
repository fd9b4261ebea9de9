"""Boxes, arrows and text as SVG, with nothing but string templates.

A picture has a white background with a border, so that it is legible in light and dark themes. A
renderer measures text with a font of its own, so widths here are estimates and boxes leave room.
"""

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

INK = "#1f2933"
GREY = "#66727f"

BLUE = "#dbeafe"
GREEN = "#dcfce7"
YELLOW = "#fef3c7"
ROSE = "#ffe4e6"
VIOLET = "#ede9fe"
PALE = "#f4f6f8"
WHITE = "#ffffff"

LINE_HEIGHT = 1.35
CHARACTER_WIDTH = 0.56

Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle that was drawn; arrows begin and end at its sides."""

    x: float
    y: float
    width: float
    height: float

    def left(self, share: float = 0.5) -> Point:
        """A point on the left side, `share` of the way down."""
        return self.x, self.y + share * self.height

    def right(self, share: float = 0.5) -> Point:
        """A point on the right side, `share` of the way down."""
        return self.x + self.width, self.y + share * self.height

    def top(self, share: float = 0.5) -> Point:
        """A point on the upper side, `share` of the way to the right."""
        return self.x + share * self.width, self.y

    def bottom(self, share: float = 0.5) -> Point:
        """A point on the lower side, `share` of the way to the right."""
        return self.x + share * self.width, self.y + self.height


class Drawing:
    """Collects the elements of one picture, in the order in which they are painted.

    Args:
        width: in pixels.
        height: in pixels.
        title: what the picture shows, for readers who cannot see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._elements: list[str] = []
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" '
            'font-family="Helvetica, Arial, sans-serif">\n'
            f"<title>{escape(title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>\n'
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10" '
            f'fill="{WHITE}" stroke="#c5ccd3"/>\n'
        )

    def text(
        self,
        at: Point,
        text: str,
        *,
        size: float = 13,
        anchor: str = "start",
        bold: bool = False,
        ink: str = INK,
    ) -> None:
        """One line of text; `at` is on its base line."""
        weight = ' font-weight="bold"' if bold else ""
        self._elements.append(
            f'<text x="{at[0]:g}" y="{at[1]:g}" font-size="{size:g}" text-anchor="{anchor}" '
            f'fill="{ink}"{weight}>{escape(text)}</text>\n'
        )

    def box(
        self,
        box: Box,
        title: str = "",
        lines: Sequence[str] = (),
        *,
        fill: str = PALE,
        size: float = 13,
        dashed: bool = False,
    ) -> Box:
        """A rectangle with a bold title and lines below, in the middle of its height."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._elements.append(
            f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" '
            f'rx="6" fill="{fill}" stroke="{GREY}"{dash}/>\n'
        )
        rows = [(title, True)] if title else []
        rows += [(line, False) for line in lines]
        step = size * LINE_HEIGHT
        y = box.y + box.height / 2 - step * len(rows) / 2 + size
        for text, bold in rows:
            drawn = size if bold else size - 1
            self.text((box.x + box.width / 2, y), text, size=drawn, anchor="middle", bold=bold)
            y += step
        return box

    def frame(self, box: Box, title: str, *, fill: str = PALE, dashed: bool = False) -> Box:
        """A rectangle around others, with its title in the upper left corner."""
        self.box(box, fill=fill, dashed=dashed)
        self.text((box.x + 12, box.y + 20), title, bold=True)
        return box

    def line(
        self,
        points: Sequence[Point],
        *,
        dashed: bool = False,
        ink: str = GREY,
        width: float = 1,
    ) -> None:
        """A line without a head."""
        self._path(points, ink=ink, dashed=dashed, ends="", width=width)

    def arrow(
        self,
        points: Sequence[Point],
        label: str = "",
        *,
        at: Point | None = None,
        dashed: bool = False,
        both: bool = False,
    ) -> None:
        """An arrow along `points`; `label` is centred at `at`, else above the middle of the first.

        Args:
            points: two or more.
            label: drawn on white, so that it may lie on a line.
            at: centre of the label.
            dashed: for what happens only sometimes.
            both: a head at the beginning, too.
        """
        ends = ' marker-end="url(#head)"' + (' marker-start="url(#head)"' if both else "")
        self._path(points, ink=INK, dashed=dashed, ends=ends, width=1.4)
        if label:
            (x, y), (to_x, to_y) = points[0], points[1]
            self.label(at or ((x + to_x) / 2, (y + to_y) / 2 - 11), label)

    def label(self, at: Point, text: str, *, size: float = 12) -> None:
        """Text on white, centred at `at`; a line break begins another line."""
        lines = text.split("\n")
        step = size * LINE_HEIGHT
        width = max(map(len, lines)) * size * CHARACTER_WIDTH
        top = at[1] - step * len(lines) / 2
        self._elements.append(
            f'<rect x="{at[0] - width / 2:g}" y="{top:g}" width="{width:g}" '
            f'height="{step * len(lines):g}" fill="{WHITE}" fill-opacity="0.85"/>\n'
        )
        for number, line in enumerate(lines):
            y = top + step * number + size
            self.text((at[0], y), line, size=size, anchor="middle")

    def dot(self, at: Point, *, ink: str = INK) -> None:
        """A small filled circle, where lines join."""
        self._elements.append(f'<circle cx="{at[0]:g}" cy="{at[1]:g}" r="3.5" fill="{ink}"/>\n')

    def number(self, at: Point, text: str) -> None:
        """A step's number in a circle."""
        self._elements.append(f'<circle cx="{at[0]:g}" cy="{at[1]:g}" r="10" fill="{INK}"/>\n')
        self.text((at[0], at[1] + 4), text, size=11, anchor="middle", bold=True, ink=WHITE)

    def svg(self) -> str:
        """The whole picture."""
        return self._head + "".join(self._elements) + "</svg>\n"

    def _path(
        self, points: Sequence[Point], *, ink: str, dashed: bool, ends: str, width: float
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        way = "L".join(f"{x:g} {y:g}" for x, y in points)
        self._elements.append(
            f'<path d="M{way}" fill="none" stroke="{ink}" stroke-width="{width:g}"{dash}{ends}/>\n'
        )
