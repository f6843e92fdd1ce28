"""``report.html`` of membership in worlds: attacks beside floors and bounds, records at risk."""

from __future__ import annotations

from pathlib import Path

from fedre_privacy.core import files
from fedre_privacy.play.worlds_result import WorldsResult

from . import html
from .html import Section, pieces
from .shared import NAME, figures, settings_of

WORDS = {
    "world": "a federation that was trained with its own coins: each slot's sample is a member or "
    "not",
    "AUC": "chance that a member is ranked above a sample that trained nowhere; 0.5 tells nothing",
    "within class": "the same within a client's class, so that guessing the class does not help",
    "TPR at 1 % FPR": "share of members found where one of a hundred others is called a member too",
    "exposed": "told in more worlds than chance explains, at a share of false discoveries of 10 %",
}


def write_worlds_report(done: WorldsResult) -> Path:
    """Write the page of attacks on membership into the folder of their worlds.

    Returns:
        The file.
    """
    plan = done.played.plan
    word, _, because = done.verdict().partition(": ")
    guesses = f"{done.played.coins.numel():,} guesses in {plan.worlds} worlds."
    sections = [
        Section(
            "Result", html.join(pieces.paragraph(guesses), html.table(done.table(), label="Result"))
        ),
        Section("Figures", figures(done.folder)),
        Section(
            "Records at risk",
            html.join(
                pieces.paragraph(
                    "By the attack that told a record in most worlds, of "
                    f"{' and '.join(done.plain)}; most told first."
                ),
                html.table(done.exposed(), label="Records at risk"),
            ),
        ),
        Section("What the words mean", pieces.facts(WORDS)),
        Section("Settings", settings_of(plan.training.plain(), "Settings of the federations")),
    ]
    lead = html.join(pieces.verdict(word, because), pieces.facts(done.lines()))
    title = f"Membership in {plan.training.run_name}"
    path = done.folder / NAME
    with files.private():
        files.write_text(path, html.page(title, lead, sections))
    return path
