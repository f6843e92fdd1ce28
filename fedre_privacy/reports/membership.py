"""``report.html`` of membership in worlds: attacks beside floors and bounds, records at risk."""

from __future__ import annotations

from pathlib import Path

from fedre_privacy.core import files
from fedre_privacy.experiments.membership_result import MembershipResult

from . import html
from .page_parts import NAME, figures, settings_of, title_of_membership

WORDS = {
    "world": "a federation that was trained with its own coins: each slot's sample is a member or "
    "not",
    "AUC": "chance that a member is ranked above a sample that trained nowhere; 0.5 is a coin",
    "within class": "the same within a client's class, so that guessing the class does not help",
    "TPR at 1 % FPR": "share of members found where one of a hundred others is called a member too",
    "exposed": "told in more worlds than chance explains; at most 10 % of the records that are "
    "called so are called so wrongly, on average",
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
        title=title_of_membership(done.primary, plan.training.protocol.name),
        name=done.folder.name,
        done=done,
        word=word,
        because=because,
        more=[
            f"An AUC of {done.scores[done.primary].auc:.2f}: shown a member and another record, "
            f"{done.primary} calls the right one the member in "
            f"{done.scores[done.primary].auc:.0%} of pairs. A coin is right in 50%.",
            done.exposure(),
        ],
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
