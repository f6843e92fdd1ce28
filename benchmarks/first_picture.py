"""Draw the picture of the first page: what FedRE's uploads give away, alone and over rounds.

    python benchmarks/first_picture.py                 trains FedRE on digits, attacks it twice
    python benchmarks/first_picture.py RUN --out DIR   of a recorded run, into a folder

Rows: private images, each the only one of its class at its client; the client's last upload,
inverted; prototypes worked out of the uploads of all rounds and inverted, by a server that holds
the clients' models; the best guess without uploads. Writes first.png, for light pages, and
first-dark.png; without --out into docs/images. A recorded run needs record.keep_every=1.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import tools
from matplotlib.figure import Figure
from torch import Tensor

import fedre_privacy as fp
from fedre_privacy.core.files import read_tensors

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
COLOURS = {"first.png": "#1f2328", "first-dark.png": "#e6edf3"}
MOST = 9


def draw(rows: Mapping[str, Tensor], colour: str, path: Path) -> None:
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
    options.add_argument("--steps", type=int, default=300, help="of the attacks (default: 300)")
    options.add_argument("--out", type=Path, default=IMAGES, help="folder of the pictures")
    return options


def rows_of(run: Path | fp.Run, steps: int) -> dict[str, Tensor]:
    """The rows of the picture (n, C, H, W), by their names, from two attacks on a run."""
    search = {"attack.name": "dip", "attack.steps": steps, "eval.ceiling": 0}
    one = fp.attack(run, target="entangled", targets=1000, set=search)
    several = fp.attack(
        run, target="recovered-prototypes", threat="strong", targets=MOST,
        set={**search, "eval.fewest_first": True},
    )  # fmt: skip
    pictures = read_tensors(several.folder / "pictures.safetensors")
    count = len(pictures["truth"])
    uploads = {int(client): place for place, client in enumerate(one.frame()["client"])}
    own = [uploads[int(client)] for client in several.frame()["client"][:count]]
    floors = pictures["floor"] / 255
    rounds = several.trial.run.settings.train.rounds
    return {
        "private images": pictures["truth"] / 255,
        "one upload of their client, inverted": one.outcome.images[own],
        f"uploads of {rounds} rounds, disentangled and inverted": several.outcome.images[:count],
        "best guess without uploads": floors[pictures["floor_of"][:count].long()],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Attack, and draw."""
    given = parser().parse_args(arguments)
    run = Path(given.run) if given.run else fp.train("fedre", set={"record.keep_every": 1})
    rows = rows_of(run, given.steps)
    for name, colour in COLOURS.items():
        draw(rows, colour, given.out / name)
        print(given.out / name)


if __name__ == "__main__":
    main()
