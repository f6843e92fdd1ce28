"""Draw the picture of the first page: private images, what came back, and the best guess.

    python benchmarks/first_picture.py                 trains and attacks as `make attack` does
    python benchmarks/first_picture.py RUN --out DIR   of a recorded run, into a folder

Writes first.png, for light pages, and first-dark.png; without --out into docs/images.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import tools
from matplotlib.figure import Figure
from torch import Tensor

import fedre_privacy as fp
from fedre_privacy.core.files import read_tensors

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
COLOURS = {"first.png": "#1f2328", "first-dark.png": "#e6edf3"}
MOST = 9


def draw(rows: dict[str, Tensor], colour: str, path: Path) -> None:
    """Draw rows of images (n, C, H, W) in [0, 1], each under its name, without a background."""
    columns = max(len(images) for images in rows.values())
    figure = Figure(figsize=(0.72 * columns, 1.05 * len(rows)), dpi=200)
    for place, (name, images) in enumerate(rows.items()):
        top = 1 - place / len(rows)
        figure.text(0.005, top - 0.02, name, color=colour, size=13, va="top")
        for column, image in enumerate(images):
            left, high = column / columns, 0.68 / len(rows)
            axes = figure.add_axes(
                (left + 0.005, top - 1 / len(rows), 0.99 / columns - 0.005, high)
            )
            axes.imshow(image.clamp(0, 1).permute(1, 2, 0), cmap="gray", vmin=0, vmax=1)
            axes.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, transparent=True, metadata={"Software": None})


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("run", nargs="?", metavar="RUN", help="a recorded run")
    options.add_argument("--steps", type=int, default=300, help="of the attack (default: 300)")
    options.add_argument("--out", type=Path, default=IMAGES, help="folder of the pictures")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Attack, and draw."""
    given = parser().parse_args(arguments)
    run = Path(given.run) if given.run else fp.train("fedre")
    result = fp.attack(run, target="prototypes", set={"attack.steps": given.steps})
    pictures = read_tensors(result.folder / "pictures.safetensors")
    truth, floor = pictures["truth"][:MOST] / 255, pictures["floor"] / 255
    rows = {
        "private images": truth,
        "recovered from prototypes": result.outcome.images[: len(truth)],
        "best guess without them": floor[pictures["floor_of"][: len(truth)].long()],
    }
    for name, colour in COLOURS.items():
        draw(rows, colour, given.out / name)
        print(given.out / name)


if __name__ == "__main__":
    main()
