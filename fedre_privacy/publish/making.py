"""Claims made from folders: of an attack, of a run with its attacks, of a benchmark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypedDict

from fedre_privacy.core.config import load_yaml
from fedre_privacy.core.errors import ConfigError, IncompatibleError, MissingInputError
from fedre_privacy.core.files import read_json
from fedre_privacy.core.manifest import covering
from fedre_privacy.core.schema import Count, Hash, Seconds, Word, converted
from fedre_privacy.eval.measures import Measure
from fedre_privacy.play.questions.base import question_of
from fedre_privacy.runs.folder import COMPLETE, Status, status_of
from fedre_privacy.runs.resolving import required, resolve_attack
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings
from fedre_privacy.study.jobs import read_result
from fedre_privacy.viewing.records import VerdictRecord

from .claims import (
    agree,
    claimed_of,
    command_of,
    portable,
    seeds_of,
    uploads_hash,
    what_of,
)
from .format import CLAIM, VERSION, Claim, check_name, sealed, write

_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")


class _Attacked(TypedDict):
    """``record.json`` of a finished attack on a run, as far as it is published."""

    status: Status
    run_manifest: Hash
    device: Word
    versions: dict[Word, Word]
    wall_s: Seconds
    kind: Word
    counterfactual: bool
    verdict: VerdictRecord
    measures: list[dict[str, Any]]
    targets: Count
    n: Count


def finished(folder: Path, runs: Path) -> list[Path]:
    """Folders of the finished attacks of an attack's, a run's or a benchmark's folder.

    Args:
        runs: folder of the run folders of a benchmark.

    Raises:
        MissingInputError: there are none.
    """
    if (folder / "jobs").is_dir():
        results = [read_result(path) for path in sorted((folder / "jobs").glob("*.json"))]
        found = [
            runs / result.get("run", "") / "attacks" / entry["folder"]
            for result in results
            if result["status"] == COMPLETE
            for entry in result["attacks"]
            if "folder" in entry
        ]
    elif folder.parent.name == "attacks":
        found = [folder]
    else:
        found = sorted((folder / "attacks").glob("*"))
        found = [one for one in found if one.is_dir() and status_of(one) == COMPLETE]
    if not found:
        raise MissingInputError(
            f"{folder} holds no finished attack.",
            next_step="Give an attack's folder, RUN/attacks/NAME, a run's, or a benchmark's.",
        )
    return found


def make(folder: Path, *, by: str = "") -> Claim:
    """Make the claim of a finished attack on a run; every file that it rests on is checked.

    Args:
        folder: of the attack, in the folder ``attacks`` of its run.
        by: who claims it.

    Raises:
        ConfigError: no such name can be published.
        MissingInputError: the attack is not there or not finished.
        DamagedInputError: a file is not what was recorded.
        IncompatibleError: the attack was not made on the run as it is now, or nothing was scored.
    """
    check_name(by)
    if status_of(folder) != COMPLETE:
        raise MissingInputError(
            f"{folder} holds no finished attack.",
            next_step="Attack first: fedre-attack --protocol fedre; it prints the folder.",
        )
    run = Run(folder.parent.parent)
    listed = covering(folder)
    for name in ("record.json", "config.yaml"):
        listed.check(folder / name)
    record = read_json(folder / "record.json", _Attacked)
    if record["run_manifest"] != run.manifest.sha256:
        raise IncompatibleError(
            f"{folder} was made from another recording than the one that {run.folder} holds now.",
            next_step="Attack again with --restart.",
        )
    attack = _attack_settings(folder, run)
    settings = portable({**run.plain(), **attack.plain()})
    plugins = [*dict.fromkeys([*run.settings.plugins(), *attack.plugins()])]
    scored = [converted(one, Measure, folder / "record.json") for one in record["measures"]]
    measures = [found for one in scored if (found := claimed_of(one)) is not None]
    if not measures:
        raise IncompatibleError(f"{folder} scored nothing, so there is nothing to claim.")
    content: dict[str, Any] = {
        "schema": CLAIM,
        "version": VERSION,
        "by": by,
        "what": what_of(settings),
        "answers": question_of(attack).name,
        "kind": record["kind"],
        "counterfactual": record["counterfactual"],
        "data": {"sha256": run.record["data_sha256"],
                 "partition_sha256": run.record["partition_sha256"]},
        "seeds": seeds_of(settings),
        "verdict": record["verdict"]["word"],
        "targets": record["targets"],
        "n": record["n"],
        "measures": measures,
        "accuracy": accuracy_of(run),
        "training": {"device": run.record["device"], "versions": run.record.get("versions", {}),
                     "seconds": run.record["wall_s"]},
        "attack": {"device": record["device"], "versions": record["versions"],
                   "seconds": record["wall_s"]},
        "hashes": {"run_manifest": run.manifest.sha256, "attack_manifest": listed.sha256,
                   "uploads": uploads_hash(run.manifest)},
        "settings": settings,
        "plugins": plugins,
        "command": command_of(settings, plugins),
    }  # fmt: skip
    claim = sealed(Claim, content)
    agree(claim, folder)
    return claim


def _attack_settings(folder: Path, run: Run) -> AttackSettings:
    loaded = load_yaml(folder / "config.yaml")
    problems: list[str] = []
    uploads = run.settings.protocol.uploads
    return required(
        resolve_attack(loaded.values, loaded.where, problems, uploads=uploads), problems
    )


def accuracy_of(run: Run) -> dict[str, Any] | None:
    """Mean and sd over clients at the moment that the protocol quotes; None without."""
    moment, final = run.settings.protocol.headline, run.record["final"]
    mean, sd = final.get(f"acc_{moment}"), final.get(f"acc_{moment}_sd")
    return None if mean is None else {"mean": mean, "sd": sd or 0.0, "moment": moment}


def write_claims(
    folder: str | Path,
    out: str | Path = "claims",
    *,
    runs: str | Path = "runs",
    by: str = "",
) -> list[Path]:
    """Write the claims of all finished attacks of a folder; return their files.

    Args:
        folder: of an attack, a run or a benchmark.
        out: a file for one claim (``.json``), or a folder for their files.
        runs: folder of the run folders of a benchmark.
        by: who claims it.

    Raises:
        FedreError: there is no finished attack, or a file is not what was recorded.
    """
    folder, out = Path(folder), Path(out)
    found = finished(folder, Path(runs))
    single = out.suffix.lower() == ".json"
    if single and len(found) > 1:
        raise ConfigError(
            f"{folder} holds {len(found)} finished attacks, and {out} is one file.",
            next_step="Give a folder: --out claims.",
        )
    written = []
    for one in found:
        claim = make(one, by=by)
        path = out if single else out / file_name(one)
        write(path, claim)
        written.append(path)
    return written


def file_name(folder: Path) -> str:
    """The name of the file of an attack's claim."""
    return _OTHER.sub("_", f"{folder.parent.parent.name}--{folder.name}")[:200] + ".json"
