"""``report.html`` of an audit: the interval of epsilon and the game behind it."""

from __future__ import annotations

from pathlib import Path

from fedre_privacy.auditing.claims import CONSISTENT, REFUTED
from fedre_privacy.auditing.recorded_run import RunAudit
from fedre_privacy.core import files
from fedre_privacy.core.manifest import DRAWN, write_manifest

from . import html
from .page_parts import NAME, figures, settings_of, title_of_audit

WORDS = {
    "epsilon shown": "with the stated confidence, privacy is not better than this: so many right "
    "guesses are too many for a smaller epsilon",
    "epsilon promised": "what the accountant works out from noise, bounds, rounds and sampling, "
    "for the same delta",
    "could have shown": "the largest epsilon that so many trials could have shown if every guess "
    "were right; below what is promised, the audit cannot confirm the promise",
    "p": "chance of at least so many right guesses if the claim holds",
    "the claim allows": "share of right guesses that no attack on a claim that holds exceeds on "
    "average",
}


def write_audit_report(audit: RunAudit) -> Path:
    """Write the page of an audit into its folder.

    Returns:
        The file.
    """
    found, run = audit.found, audit.run
    rows = audit.table()
    word, _, because = audit.verdict().partition(": ")
    path = audit.folder / NAME
    text = html.fill_template(
        "audit.html",
        title=title_of_audit(found.level, run.settings.protocol.name),
        name=run.name,
        more=_meaning(audit),
        word=word,
        because=because,
        lines={"Run": run.name} | audit.lines(),
        rows=rows,
        figures=figures(audit.folder),
        words={name: WORDS[name] for name in WORDS if name in rows[0]},
        settings=settings_of(run.settings.plain(), "Settings of the run"),
    )
    files.write_text(path, text)
    write_manifest(audit.folder, [path], name=DRAWN)
    return path


def _meaning(audit: RunAudit) -> list[str]:
    """The game and what follows, for a reader who knows neither."""
    found = audit.found
    allowed = "" if found.cap is None else f" The promise allows at most {found.cap:.1%}."
    lines = [
        f"From what the defences let through, {found.right} of {found.trials} coins were guessed "
        f"right, which is {found.right / found.trials:.1%}. Blind guesses are right in "
        f"50%.{allowed}"
    ]
    if found.verdict == REFUTED:
        lines.append("The promise is broken: do not rely on it until the cause is found.")
    elif found.verdict == CONSISTENT and (found.promised or 0.0) > found.ceiling:
        lines.append(
            "Nothing speaks against the promise, but so few coins could not have broken it: more "
            "trials would say more."
        )
    elif found.verdict == CONSISTENT and found.shown > (found.promised or 0.0):
        lines.append(
            f"What is shown lies above the promise, as happens in up to {found.alpha:.0%} of "
            "audits of correct mechanisms. Repeat the audit with another seed."
        )
    elif found.verdict == CONSISTENT:
        lines.append(
            "Nothing speaks against the promise. If it is kept, the true epsilon lies between the "
            "two numbers."
        )
    else:
        lines.append("Nothing is promised, so the number says how much is given away at least.")
    lines.append(f"The lower bound holds as far as its method does: {found.how}.")
    return lines
