"""Files of an attack on another system's uploads: table, figure and one page."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd
import torch
import yaml
from matplotlib.figure import Figure

from fedre_privacy.core import files
from fedre_privacy.core.types import Reconstruction
from fedre_privacy.eval.report import reconstruction_sheet, save_figure
from fedre_privacy.eval.report.figures import image_sheet
from fedre_privacy.play.foreign import ForeignResult, Recorded

from . import html
from .html import Html, Section, Target
from .shared import SHOWN_TARGETS, figures

WORDS = {
    "residual": "||f(x) - r||^2 / ||r||^2: how far the answer's representation is from its own "
    "target; small means that the attack did what it was asked, not that the image is right",
    "mismatched": "the same to the other targets of the client: an answer that fits all alike "
    "says nothing about its own",
    "grey": "the same for a grey image, which needs no upload",
}


def write_foreign(result: ForeignResult) -> Path:
    """Write scores, figure and page into the attack's folder; return the page."""
    folder, game = result.folder, result.game
    frame = result.rows if result.scores is None else result.scores.rows
    files.write_frame(folder / "scores.csv", frame)
    drawn = _figure(result)
    if drawn is not None:
        save_figure(drawn, folder / "figure", data=frame)
    sections = [
        Section("Result", html.table(result.table(), label="Result")),
        Section("Figures", figures(folder)),
        Section("Targets", _gallery(result)),
        Section("Single targets", html.table(_rows(frame), label="Targets", tall=True)),
        Section("What the words mean", html.facts(WORDS) if drawn is not None else Html("")),
        Section(
            "Settings",
            html.preformatted(
                yaml.safe_dump(game.settings.plain(), sort_keys=False), label="Settings"
            ),
        ),
        Section("Again", html.preformatted(command(game.recorded, result), label="Command")),
    ]
    flag = (
        html.flag("NOT SCORED", "no truth was given: no number here compares with true images.")
        if result.scores is None
        else Html("")
    )
    head, _, because = result.verdict().partition(": ")
    lead = html.join(flag, html.verdict(head, because), html.facts(game.lines()))
    title = f"{game.settings.attack.name} on {', '.join(game.kinds)} of another system"
    path = folder / "report.html"
    files.write_text(path, html.page(title, lead, sections))
    return path


def _rows(frame: pd.DataFrame) -> list[dict[str, object]]:
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]


def command(recorded: Recorded, result: ForeignResult) -> str:
    """The command that repeats the attack."""
    shape = "x".join(map(str, recorded.image_shape))
    parts = ["fedre-attack", "--uploads", str(recorded.uploads), "--extractor", recorded.extractor]
    parts += ["--weights", str(recorded.weights), "--image-shape", shape]
    for option, value in (
        ("--classes", recorded.classes), ("--aux", recorded.aux), ("--truth", recorded.truth)
    ):  # fmt: skip
        parts += [] if value is None else [option, str(value)]
    parts += ["--attack", result.game.settings.attack.name]
    return shlex.join([*parts, "--config", str(result.folder / "config.yaml")])


def _figure(result: ForeignResult) -> Figure | None:
    outcome, name = result.outcome, result.game.settings.attack.name
    if not isinstance(outcome, Reconstruction) or outcome.images.shape[1] not in (1, 3):
        return None
    title = f"{name} on {', '.join(result.game.kinds)} of another system"
    caption = " ".join(f"{k}: {v}." for k, v in result.game.lines().items())
    if result.scores is not None:
        return reconstruction_sheet(result.scores, outcome.images, title=title, caption=caption)
    order = torch.tensor(result.rows["residual"].to_numpy()).nan_to_num(torch.inf).argsort()
    count = min(len(order), 12)
    picked = order[torch.linspace(0, len(order) - 1, count).round().long()]
    notes = [
        f"target {int(i)}\nclient {row.client}, class {row.label}\nresidual {row.residual:.2g}\n"
        f"to others {row.mismatched:.2g}\ngrey image {row.grey:.2g}"
        for i in picked
        for row in [result.rows.iloc[int(i)]]
    ]
    columns = {"recovered": outcome.images[picked], "before fitting": outcome.prior[picked]}
    return image_sheet(
        columns,
        notes,
        title=title,
        caption=f"{caption} Rows: evenly spaced ranks by residual, lowest first. No truth was "
        "given, so nothing is scored.",
    )


def _gallery(result: ForeignResult) -> Html:
    outcome = result.outcome
    if not isinstance(outcome, Reconstruction) or outcome.images.shape[1] not in (1, 3):
        return Html("")
    shown = []
    for row in result.rows.head(SHOWN_TARGETS).to_dict("records"):
        at = int(row["target"])
        shots = {"recovered": html.png(outcome.images[at])}
        if result.scores is not None:
            shots = {"truth (match)": html.png(result.scores.originals[at]), **shots}
        shown.append(
            Target(
                f"Target {at}: client {row['client']}, class {row['label']}",
                shots,
                {
                    "residual": f"{row['residual']:.3g} (grey image {row['grey']:.3g})",
                    "to other targets": f"{row['mismatched']:.3g}",
                },
            )
        )
    return html.gallery(shown)
