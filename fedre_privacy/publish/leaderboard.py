"""A folder of claims and verifications as one page: claimed beside repeated.

Files may come from strangers. What is refused is listed with the reason, and the rest is shown.
Claims stand in one table only where they answer the same question: the same images, shares, target,
adversary and way of scoring.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedre_privacy.active_server.base import steerings
from fedre_privacy.core import files
from fedre_privacy.core.config import knobs
from fedre_privacy.core.errors import FedreError, MissingInputError
from fedre_privacy.core.registry import Registry
from fedre_privacy.core.units import human_seconds, plural
from fedre_privacy.defenses.base import defenses
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.eval.measures import Measure
from fedre_privacy.partition.base import partitions
from fedre_privacy.reports.html import fill_template
from fedre_privacy.runs.settings import Evaluation

from .claims import agree, leading_measure, measure_of, targets_of
from .comparison import ACCURACY, contradiction, states
from .format import Claim, Numbers, Verification, digest, read_published
from .names import ATTACK, OTHERWISE, PARTS, REPEATS, SCORES, SPLIT, TRAINING, WITHIN

UNCHECKED = "not repeated yet"
MOST_FILES = 5_000
"""Files of a folder that are read."""

DONE = {
    SPLIT: "trained on another split and attacked again",
    TRAINING: "trained and attacked again",
    ATTACK: "attacked again",
    SCORES: "scored again",
}
"""What was repeated, in words."""

TARGETS = {"uploaded": "what the protocol uploads"}
_FREE = ("seed", "targets", "ceiling", "metrics", "attacker", "candidates")
"""Settings of the evaluation that change how much is known, and not what is asked."""


@dataclass(frozen=True)
class PostedClaim:
    """A claim with what came of repeating it.

    Args:
        file: relative to the folder, with slashes.
        checks: its verifications, the one that counts first.
    """

    file: str
    claim: Claim
    checks: tuple[Verification, ...]

    @property
    def status(self) -> str:
        """What came of repeating it, in words."""
        return self.checks[0].outcome if self.checks else UNCHECKED

    def repeated(self, key: str, group: str = "") -> Numbers | None:
        """The numbers of a measure in the verification that counts; None without."""
        rows = self.checks[0].measures if self.checks else []
        return next((row.repeated for row in rows if (row.key, row.group) == (key, group)), None)

    def leak(self) -> float:
        """By how much the leading measure lies over its floor, as repeated where it was."""
        lead = leading_measure(self.claim)
        numbers = self.repeated(lead.key) or lead.numbers
        return numbers.value if numbers.over is None else numbers.over


@dataclass(frozen=True)
class Board:
    """What lies in a folder.

    Args:
        posted: claims, in the order of their files.
        refused: file to reason.
    """

    posted: tuple[PostedClaim, ...]
    refused: Mapping[str, str]

    def questions(self) -> list[list[PostedClaim]]:
        """Claims of one question each, the most leakage first; the most claims first."""
        by_question: dict[str, list[PostedClaim]] = {}
        for one in self.posted:
            by_question.setdefault(digest(question_of(one.claim)), []).append(one)
        groups = [
            sorted(group, key=PostedClaim.leak, reverse=True) for group in by_question.values()
        ]
        return sorted(groups, key=len, reverse=True)

    def count(self, *statuses: str) -> int:
        """Claims of some statuses."""
        return sum(one.status in statuses for one in self.posted)

    def __repr__(self) -> str:
        return f"Board({_counts(self)})"


def collect(folder: Path) -> Board:
    """Read every claim and verification in a folder and below; links are not followed.

    Raises:
        MissingInputError: no such folder, or no claim in it.
    """
    if not folder.is_dir():
        raise MissingInputError(
            f"No folder at {folder}.", next_step="Give the folder of your claims, such as claims."
        )
    claims: dict[str, tuple[str, Claim]] = {}
    checks: list[tuple[str, Verification]] = []
    refused: dict[str, str] = {}
    for number, path in enumerate(_json_files(folder)):
        name = path.relative_to(folder).as_posix()
        if number == MOST_FILES:
            refused[name] = f"is one too many: {MOST_FILES:,} files are read"
            break
        try:
            found = read_published(path)
            if isinstance(found, Claim):
                agree(found, path)
        except (FedreError, OSError) as error:
            refused[name] = _short(error, path)
            continue
        if isinstance(found, Verification):
            checks.append((name, found))
        elif found.sha256 in claims:
            refused[name] = f"is the same claim as {claims[found.sha256][0]}"
        else:
            claims[found.sha256] = (name, found)
    if not claims:
        first = next((f" The first that was refused, {k}, {v}." for k, v in refused.items()), "")
        raise MissingInputError(
            f"{folder} holds no claim.{first}",
            next_step="Make one: fedre-benchmark claim RUN/attacks/NAME.",
        )
    of: dict[str, list[Verification]] = {}
    for name, check in checks:
        known = claims.get(check.claim)
        why = (
            contradiction(check, known[1]) if known else "is of a claim that is not in this folder"
        )
        if why:
            refused[name] = why
        else:
            of.setdefault(check.claim, []).append(check)
    posted = [
        PostedClaim(name, claim, tuple(sorted(of.get(sha256, ()), key=_sort_weight)))
        for sha256, (name, claim) in claims.items()
    ]
    return Board(tuple(posted), dict(sorted(refused.items())))


def _json_files(folder: Path) -> Iterator[Path]:
    for where, inside, names in os.walk(folder):
        inside.sort()
        paths = [Path(where) / name for name in sorted(names) if name.lower().endswith(".json")]
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def _short(error: Exception, path: Path) -> str:
    """The reason without the file, which is listed beside it."""
    words = error.problems[0] if isinstance(error, FedreError) else type(error).__name__
    return words.removeprefix(f"{path} ").rstrip(".")


def _sort_weight(check: Verification) -> tuple[bool, int]:
    """What did not repeat counts first, then what repeated more."""
    return check.outcome != OTHERWISE, PARTS.index(check.part)


def question_of(claim: Claim) -> dict[str, Any]:
    """What two claims must have in common to be compared."""
    settings = claim.settings
    return {
        "data": {**settings["data"], "path": claim.data.sha256, "sha256": claim.data.sha256},
        "partition": {k: v for k, v in settings["partition"].items() if k != "seed"},
        "clients": settings["train"].get("clients"),
        "target": claim.what.target,
        "answers": claim.answers,
        "threat": claim.what.threat,
        "attacker": claim.what.attacker,
        "evaluation": {k: v for k, v in settings["eval"].items() if k not in _FREE},
        "measure": leading_measure(claim).key,
    }


def part_words(given: Mapping[str, Any], registry: Registry[Any]) -> str:
    """A part with its settings, without those of their defaults: ``gaussian (clip 5)``.

    The setting that a partition is named with is always told: ``pra (alpha 0.1)``.
    """
    name = str(given.get("name"))
    kind = registry.get(name) if name in registry.names() else None
    usual = {} if kind is None else {knob.name: knob.default for knob in knobs(kind)}
    usual.pop(getattr(kind, "shorthand", ""), None)
    return _words(given, usual)


def _words(given: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """The name of a part, and its settings in brackets but for the usual ones."""
    told = [
        f"{key} {value}"
        for key, value in given.items()
        if key != "name" and value is not None and not (key in usual and usual[key] == value)
    ]
    return f"{given.get('name')} ({', '.join(told)})" if told else str(given.get("name"))


def write_leaderboard(
    folder: str | Path = "claims", out: str | Path | None = None
) -> tuple[Path, Board]:
    """Write the page of a folder of claims and verifications.

    Args:
        out: the HTML file; None: ``leaderboard.html`` in the folder.

    Returns:
        The file, and what it shows.

    Raises:
        MissingInputError: no such folder, or no claim in it.
        StorageError: the page cannot be written.
    """
    folder = Path(folder)
    board = collect(folder)
    path = folder / "leaderboard.html" if out is None else Path(out)
    text = fill_template(
        "leaderboard.html",
        title=f"Leaderboard of {folder.resolve().name}",
        counts=_counts(board),
        questions=[_question(number, group) for number, group in enumerate(board.questions(), 1)],
        refused=list(board.refused.items()),
    )
    files.write_text(path, text)
    return path, board


def _counts(board: Board) -> str:
    words = [
        plural(len(board.posted), "claim"),
        f"{board.count(REPEATS, WITHIN)} repeated",
        f"{board.count(OTHERWISE)} did not repeat",
        f"{board.count(UNCHECKED)} not repeated yet",
    ]
    if board.refused:
        words.append(f"{plural(len(board.refused), 'file')} refused")
    return ", ".join(words)


def _question(number: int, group: Sequence[PostedClaim]) -> dict[str, Any]:
    """A table of claims, as the template takes it."""
    claim = group[0].claim
    asked, lead = question_of(claim), leading_measure(claim)
    target = TARGETS.get(claim.what.target, claim.what.target)
    what = claim.answers if target == claim.answers else f"{claim.answers} from {target}"
    partition = part_words(asked["partition"], partitions)
    data = {k: v for k, v in asked["data"].items() if k not in ("path", "sha256", "download")}
    usual = {knob.name: knob.default for knob in knobs(Evaluation)}
    facts = {
        "Data": f"{_words(data, {})}, SHA-256 {claim.data.sha256[:16]}",
        "Shares": f"{partition}, {asked['clients']} clients",
        "Adversary": f"{claim.what.threat}, {claim.what.attacker}",
        "Ranked by": f"{lead.title}, over its {lead.against}",
        "Scored with": ", ".join(
            f"{k} {v}" for k, v in asked["evaluation"].items() if usual.get(k) != v
        ),
    }
    title = f"{what.capitalize()}: {claim.what.dataset}, {partition}, {claim.what.threat}"
    rows = [_row(place, one) for place, one in enumerate(group, 1)]
    return {"id": f"q{number}", "title": title, "rows": rows,
            "facts": {heading: text for heading, text in facts.items() if text}}  # fmt: skip


def _row(place: int, one: PostedClaim) -> dict[str, Any]:
    """A claim in a table, and what is behind it."""
    claim, what, lead = one.claim, one.claim.what, leading_measure(one.claim)
    again, accuracy = one.repeated(lead.key), one.repeated(*ACCURACY)
    mean = accuracy.value if accuracy else claim.accuracy.mean if claim.accuracy else None
    settings, scheme = claim.settings, claim.settings["protocol"].get("entanglement")
    named: list[tuple[str, Registry[Any], Sequence[Mapping[str, Any]]]] = [
        ("scheme", schemes, [scheme] if scheme else []),
        ("defence", defenses, settings.get("defense", ())),
        ("ACTIVE SERVER", steerings, settings.get("steering", ())),
    ]
    verdict = one.checks[0].verdict if one.checks else claim.verdict
    return {
        "place": place,
        "protocol": what.protocol,
        "parts": [f"{word} {part_words(part, registry)}"
                  for word, registry, found in named for part in found],
        "attack": what.attack + (f" after {what.via}" if what.via else ""),
        "kind": claim.kind,
        "counterfactual": claim.counterfactual,
        "seed": claim.seeds.training,
        "n": lead.numbers.n,
        "accuracy": "-" if mean is None else f"{mean:.3f}",
        "claimed": _measure_cell(measure_of(lead, lead.numbers)),
        "again": None if again is None else _measure_cell(measure_of(lead, again)),
        "status": one.status,
        "state": {REPEATS: "good", WITHIN: "good", OTHERWISE: "bad"}.get(one.status, "open"),
        "by": claim.by,
        "checks": [f"{DONE[check.part]}{f' by {check.by}' if check.by else ''}, {check.made.device}"
                   for check in one.checks],
        "verdicts": "" if verdict == claim.verdict
        else f"verdict: {verdict}, claimed {claim.verdict}",
        "measures": _measures(one),
        "facts": _facts(one),
        "command": claim.command,
    }  # fmt: skip


def _measure_cell(measure: Measure) -> dict[str, str]:
    """A measure in a cell: its difference, the interval of that, value and floor."""
    over, bracket, interval = measure.over_text().partition("[")
    floor = measure.number(measure.floor)
    value = f"{measure.heading} {measure.number(measure.value)}, {measure.against} {floor}"
    return {"over": over.strip(), "interval": bracket + interval, "value": value}


def _measures(one: PostedClaim) -> list[dict[str, str]]:
    """Every claimed measure beside the repeated one."""
    check = one.checks[0] if one.checks else None
    words = {} if check is None else {
        (row.key, row.group): text
        for row, text in zip(check.measures, states(check), strict=True)
    }  # fmt: skip
    out = []
    for claimed in one.claim.measures:
        measure = measure_of(claimed, claimed.numbers)
        again = one.repeated(claimed.key, claimed.group)
        out.append({
            "targets": targets_of(claimed.group),
            "metric": measure.heading, "value": measure.value_text(), "floor": measure.floor_text(),
            "claimed": measure.over_text(), "n": str(claimed.numbers.n),
            "again": "-" if again is None else measure_of(claimed, again).over_text(),
            "state": words.get((claimed.key, claimed.group), UNCHECKED),
        })  # fmt: skip
    return out


def _facts(one: PostedClaim) -> dict[str, str]:
    claim, made = one.claim, one.claim.attack
    facts = {
        "File": one.file,
        "Claimed by": claim.by or "nobody says",
        "Verdict": claim.verdict,
        "Computed": f"{made.device}; training {human_seconds(claim.training.seconds)}, attack "
        f"{human_seconds(made.seconds)}",
        "Versions": ", ".join(f"{name} {number}" for name, number in made.versions.items()),
        "Run's manifest": claim.hashes.run_manifest,
        "Claim's SHA-256": claim.sha256,
    }
    return facts | ({"Modules needed": ", ".join(claim.plugins)} if claim.plugins else {})
