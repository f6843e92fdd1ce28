"""``report.html`` of an audit: the interval of epsilon and the game behind it."""

from __future__ import annotations

from pathlib import Path

from fedre_privacy.auditing.recorded_run import RunAudit
from fedre_privacy.core import files
from fedre_privacy.core.manifest import DRAWN, write_manifest

from . import html
from .page_parts import NAME, figures, settings_of

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
        title=f"Audit of {run.name}: {found.level}",
        word=word,
        because=because,
        lines=audit.lines(),
        rows=rows,
        figures=figures(audit.folder),
        words={name: WORDS[name] for name in WORDS if name in rows[0]},
        settings=settings_of(run.settings.plain(), "Settings of the run"),
    )
    files.write_text(path, text)
    write_manifest(audit.folder, [path], name=DRAWN)
    return path
