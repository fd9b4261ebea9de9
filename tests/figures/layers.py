"""The layers, the nouns in them, and which layer imports which."""

from collections.abc import Sequence
from pathlib import Path

from tests.figures.drawing import (
    BLUE,
    GREEN,
    GREY,
    PALE,
    ROSE,
    VIOLET,
    WHITE,
    YELLOW,
    Box,
    Drawing,
)
from tests.figures.imports import LAYERS, folders, import_arrows, modules

FILLS = (PALE, PALE, PALE, ROSE, YELLOW, PALE, GREEN, BLUE, VIOLET)

NOUNS = (
    "buffered_log",
    "service",
    "coordinator",
    "pending_ack",
    "snapshots",
    "read_committed",
    "native",
    "offset_index",
    "links",
    "groups",
    "tables",
    "decisions",
    "subscription",
    "shared",
    "repair",
    "status",
    "worker",
)
"""Folders of core and drivers, which have the same place in both."""

COLUMNS = 6
CHIP_HEIGHT, CHIP_WIDTH, CHIP_GAP = 26, 104, 8
LEFT, TOP = 20, 56
TITLE_HEIGHT = 30
ROW_GAP = 18
INNER = COLUMNS * CHIP_WIDTH + (COLUMNS - 1) * CHIP_GAP
WIDTH = INNER + 24
RAIL_GAP = 40

Chip = tuple[int, int, int, str]
"""Column in pixels, line, width, text."""


def layers(root: Path) -> str:
    """Boxes from top to bottom; at the right one line for each layer that is imported."""
    arrows = import_arrows(root)
    contents = [_chips(root, number) for number in range(len(LAYERS))]
    heights = [TITLE_HEIGHT + _lines(chips) * (CHIP_HEIGHT + CHIP_GAP) + 4 for chips in contents]
    height = TOP + sum(heights) + ROW_GAP * len(heights) + 30
    imported = sorted({to for _, to in arrows})
    drawing = Drawing(
        LEFT + WIDTH + RAIL_GAP * len(imported) + 66,
        height,
        "Layers, their folders, and which layer imports which",
    )
    drawing.text((LEFT, 32), "Layers and nouns", size=16, bold=True)
    y = TOP
    boxes: list[Box] = []
    for number, chips in enumerate(contents):
        box = Box(LEFT, y, WIDTH, heights[number])
        title = f"pipeline/{LAYERS[number].title}" if _single(number) else LAYERS[number].title
        drawing.frame(box, title, fill=FILLS[number])
        for x, line, width, text in chips:
            top = y + TITLE_HEIGHT + line * (CHIP_HEIGHT + CHIP_GAP)
            chip = Box(LEFT + 12 + x, top, width, CHIP_HEIGHT)
            drawing.box(chip, lines=[text], fill=WHITE, size=12.5)
        boxes.append(box)
        y += heights[number] + ROW_GAP
    _rails(drawing, boxes, arrows, imported)
    drawing.text(
        (LEFT, height - 16),
        "An arrow leads to the layer that is imported; a dot is a layer that imports it.",
        size=12,
        ink=GREY,
    )
    return drawing.svg()


def _single(number: int) -> bool:
    return LAYERS[number].packages == (f"pipeline/{LAYERS[number].title}",)


def _chips(root: Path, number: int) -> Sequence[Chip]:
    """What is shown in a layer: in core and drivers at fixed places, elsewhere in lines."""
    packages = LAYERS[number].packages
    if _single(number) and LAYERS[number].title in ("core", "drivers"):
        found = folders(root / packages[0])
        assert set(found) <= set(NOUNS), f"a new noun in {packages[0]}: name it in NOUNS"
        step = CHIP_WIDTH + CHIP_GAP
        places = {name: divmod(place, COLUMNS) for place, name in enumerate(NOUNS)}
        return [(places[name][1] * step, places[name][0], CHIP_WIDTH, name) for name in found]
    if len(packages) > 1:
        names = [one.rsplit("/", 1)[-1] for one in packages]
    else:
        inside = root / packages[0]  # pyright: ignore[reportGeneralTypeIssues]
        names = [*(f"{name}/" for name in folders(inside)), *modules(inside)]
    chips: list[Chip] = []
    x = line = 0
    for name in names:
        width = max(54, 7 * len(name) + 18)
        if x + width > INNER:
            x, line = 0, line + 1
        chips.append((x, line, width, name))
        x += width + CHIP_GAP
    return chips


def _lines(chips: Sequence[Chip]) -> int:
    return 1 + max(line for _, line, _, _ in chips)


def _rails(
    drawing: Drawing,
    boxes: Sequence[Box],
    arrows: set[tuple[int, int]],
    imported: Sequence[int],
) -> None:
    """One vertical line for each imported layer; a layer that imports it has a dot there."""
    rails = {to: LEFT + WIDTH + 46 + RAIL_GAP * place for place, to in enumerate(imported)}
    joins = {
        (number, to): (rails[to], boxes[number].right(0.3)[1]) for number, to in sorted(arrows)
    }
    for to, x in rails.items():
        target = boxes[to].right(0.72)
        ends = [target[1], *(y for (_, layer), (_, y) in joins.items() if layer == to)]
        drawing.line([(x, min(ends)), (x, max(ends))])
        drawing.arrow([(x, target[1]), target])
    for number in sorted({number for number, _ in joins}):
        begin = boxes[number].right(0.3)
        last = max(x for (layer, _), (x, _) in joins.items() if layer == number)
        drawing.line([begin, (last, begin[1])])
    for x, y in joins.values():
        drawing.dot((x, y))
