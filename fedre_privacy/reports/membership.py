"""``report.html`` of membership in worlds: attacks beside floors and bounds, records at risk."""

from __future__ import annotations

from pathlib import Path

from fedre_privacy.core import files
from fedre_privacy.experiments.membership_result import MembershipResult

from . import html
from .page_parts import NAME, figures, settings_of

WORDS = {
    "world": "a federation that was trained with its own coins: each slot's sample is a member or "
    "not",
    "AUC": "chance that a member is ranked above a sample that trained nowhere; 0.5 tells nothing",
    "within class": "the same within a client's class, so that guessing the class does not help",
    "TPR at 1 % FPR": "share of members found where one of a hundred others is called a member too",
    "exposed": "told in more worlds than chance explains, at a share of false discoveries of 10 %",
}


def write_membership_report(done: MembershipResult) -> Path:
    """Write the page of attacks on membership into the folder of their worlds.

    Returns:
        The file.
    """
    plan = done.played.plan
    word, _, because = done.verdict().partition(": ")
    text = html.fill_template(
        "worlds.html",
        title=f"Membership in {plan.training.run_name}",
        done=done,
        word=word,
        because=because,
        guesses=f"{done.played.coins.numel():,} guesses in {plan.worlds} worlds.",
        most="By the attack that told a record in most worlds, of "
        f"{' and '.join(done.plain)}; most told first.",
        figures=figures(done.folder),
        words=WORDS,
        settings=settings_of(plan.training.plain(), "Settings of the federations"),
    )
    path = done.folder / NAME
    with files.private():
        files.write_text(path, text)
    return path
