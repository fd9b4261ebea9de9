"""Writes every picture to docs/img."""

from tests.figures import FIGURES, FOLDER

FOLDER.mkdir(parents=True, exist_ok=True)
for name, draw in FIGURES.items():
    (FOLDER / name).write_text(draw())
