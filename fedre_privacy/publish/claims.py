"""Claims: made from the folder of a finished attack, and read from a stranger's file.

What a claim says of itself beside its settings (names, seeds, the command) follows from the
settings. It is there for readers, and a file in which the two differ is refused. No setting of a
claim that is read is resolved here and nothing is imported.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedre_privacy.benchmarking.jobs import read_result
from fedre_privacy.core.config import load_yaml
from fedre_privacy.core.errors import ConfigError, IncompatibleError, MissingInputError
from fedre_privacy.core.files import read_json
from fedre_privacy.core.manifest import Manifest, complete_manifest
from fedre_privacy.core.registry import plugin_words
from fedre_privacy.core.typed_yaml import short
from fedre_privacy.eval.measures import GROUPS, TABLE, Measure, group_name
from fedre_privacy.experiments.questions.base import question_of
from fedre_privacy.runs.folder import COMPLETE, status_of
from fedre_privacy.runs.resolution import require_resolved, resolve_attack
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import ATTACK_SECTIONS, TRAIN_SECTIONS

from .format import (
    CLAIM,
    VERSION,
    Claim,
    Claimed,
    Numbers,
    check_name,
    digest,
    hash_content,
    read_published,
    refuse_file,
    write,
)

Values = Mapping[str, Any]

NEEDED = ("data", "partition", "model", "protocol", "train", "record", "target", "attack",
          "threat", "eval", "metrics")  # fmt: skip
"""Sections of settings that every claim holds."""

_SEPARATOR = re.compile(r"[/\\:]|^\.+$|^~|^$")
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.-]+")


def read_claim(path: Path) -> Claim:
    """Read a claim, which agrees with itself.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: it is no claim, or was changed.
    """
    if not path.is_file():
        raise MissingInputError(
            f"No claim at {path}.",
            next_step="Make one of a finished attack: fedre-benchmark claim RUN/attacks/NAME.",
        )
    found = read_published(path)
    if not isinstance(found, Claim):
        raise refuse_file(path, "is a verification, and no claim")
    agree(found, path)
    return found


def agree(claim: Claim, path: Path) -> None:
    """Refuse a claim whose names, seeds or command are not those of its settings.

    Raises:
        DamagedInputError: they are not, or the settings are none.
    """
    settings = claim.settings
    strange = [key for key in settings if key not in (*TRAIN_SECTIONS, *ATTACK_SECTIONS)]
    absent = [key for key in NEEDED if key not in settings]
    if strange or absent:
        wrong = f"unknown sections {short(strange)}" if strange else f"no section '{absent[0]}'"
        raise refuse_file(path, f"has settings with {wrong}")
    try:
        follows = {**names_of(settings), "command": command_of(settings, claim.plugins)}
        file = settings["data"].get("path")
        if file is not None and (not isinstance(file, str) or _SEPARATOR.search(file)):
            raise refuse_file(
                path, f"names {short(file)} as the file of its data; a claim names no folders"
            )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise refuse_file(path, f"has settings that name no parts: {short(str(error))}") from None
    for key, value in follows.items():
        if msgspec.to_builtins(getattr(claim, key)) != value:
            raise refuse_file(path, f"says other {key} than its settings do")
    if len({(one.key, one.group) for one in claim.measures}) < len(claim.measures):
        raise refuse_file(path, "claims a measure twice")


def names_of(settings: Values) -> dict[str, dict[str, Any]]:
    """What a claim says of its settings in ``what`` and ``seeds``: names of parts, and seeds."""
    protocol, via = settings["protocol"], settings.get("via")
    scheme = protocol.get("entanglement")
    what = {
        "protocol": protocol["name"],
        "scheme": None if scheme is None else scheme["name"],
        "defenses": [one["name"] for one in settings.get("defense", ())],
        "steerings": [one["name"] for one in settings.get("steering", ())],
        "dataset": settings["data"]["name"],
        "partition": settings["partition"]["name"],
        "target": settings["target"],
        "attack": settings["attack"]["name"],
        "via": None if via is None else via["name"],
        "threat": settings["threat"],
        "attacker": settings["eval"]["attacker"],
    }
    seeds = {
        "training": settings["train"]["seed"],
        "partition": settings["partition"].get("seed"),
        "evaluation": settings["eval"]["seed"],
    }
    return {"what": what, "seeds": seeds}


def command_of(settings: Values, plugins: list[str]) -> str:
    """The command that trains and attacks by complete settings, whatever the defaults are."""
    words = ["fedre-attack"]
    for key, section in settings.items():
        words += ["--set", shlex.quote(f"{key}={json.dumps(section)}")]
    return " ".join(words) + plugin_words(plugins)


def portable(settings: Values) -> dict[str, Any]:
    """Settings without the folder of a data file, which is nobody's business."""
    data = settings.get("data")
    path = data.get("path") if isinstance(data, Mapping) else None
    if not isinstance(path, str):
        return dict(settings)
    return {**settings, "data": {**(data or {}), "path": Path(path).name}}


def uploads_hash(manifest: Manifest) -> str:
    """A hash of the recorded uploads and models of a run, which hold no time and no place."""
    return digest({
        name: entry.sha256
        for name, entry in manifest.entries.items()
        if name.startswith(("uploads/", "models/")) and name.endswith(".safetensors")
    })  # fmt: skip


def claimed_of(measure: Measure) -> Claimed | None:
    """A measure as it is claimed; None for what no table shows and what has no value."""
    if measure.value is None or not measure.is_in(TABLE):
        return None
    numbers = Numbers(**{key: getattr(measure, key) for key in Numbers.__struct_fields__})
    words = [key for key in Claimed.__struct_fields__ if key != "numbers"]
    return Claimed(**{key: getattr(measure, key) for key in words}, numbers=numbers)


def measure_of(claimed: Claimed, numbers: Numbers) -> Measure:
    """Numbers under the words of a claim, to be printed as every measure is."""
    words = msgspec.structs.asdict(claimed)
    words.pop("numbers")
    return Measure(**words, **msgspec.structs.asdict(numbers))


def leading_measure(claim: Claim) -> Claimed:
    """The measure that a claim is ranked by: the first of all targets that stands over a floor."""
    whole = [one for one in claim.measures if not one.group]
    return next((one for one in whole if one.numbers.over is not None), claim.measures[0])


def targets_of(group: str) -> str:
    """A group of targets in words: by the images behind them, or what stands beside them."""
    sizes = {key for key, *_ in GROUPS}
    return group_name(group) if group in sizes or not group else group


def finished_attacks(folder: Path, runs: Path) -> list[Path]:
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
    run, listed = Run(folder.parent.parent), complete_manifest(folder)
    for name in ("record.json", "config.yaml"):
        listed.check(folder / name)
    record: dict[str, Any] = read_json(folder / "record.json", dict)
    if record["run_manifest"] != run.manifest.sha256:
        raise IncompatibleError(
            f"{folder} was made from another recording than the one that {run.folder} holds now.",
            next_step="Attack again with --restart.",
        )
    loaded, problems = load_yaml(folder / "config.yaml"), list[str]()
    uploads = run.settings.protocol.uploads
    attack = require_resolved(
        resolve_attack(loaded.values, loaded.where, problems, uploads=uploads), problems
    )
    settings = portable({**run.plain(), **attack.plain()})
    plugins = [*dict.fromkeys([*run.settings.plugins(), *attack.plugins()])]
    known = Measure.__dataclass_fields__
    measures = [Measure(**{k: v for k, v in one.items() if k in known})
                for one in record["measures"]]  # fmt: skip
    claimed = [found for one in measures if (found := claimed_of(one)) is not None]
    if not claimed:
        raise IncompatibleError(f"{folder} scored nothing, so there is nothing to claim.")
    content: dict[str, Any] = {
        "schema": CLAIM,
        "version": VERSION,
        "by": by,
        "answers": question_of(attack).name,
        "kind": record["kind"],
        "counterfactual": record["counterfactual"],
        "data": {"sha256": run.record["data_sha256"],
                 "partition_sha256": run.record["partition_sha256"]},
        "verdict": record["verdict"]["word"],
        "targets": record["targets"],
        "n": record["n"],
        "measures": claimed,
        "accuracy": accuracy_of(run),
        "training": {"device": run.record["device"], "versions": run.record.get("versions", {}),
                     "seconds": run.record["wall_s"]},
        "attack": {"device": record["device"], "versions": record["versions"],
                   "seconds": record["wall_s"]},
        "hashes": {"run_manifest": run.manifest.sha256, "attack_manifest": listed.sha256,
                   "uploads": uploads_hash(run.manifest)},
        **names_of(settings),
        "settings": settings,
        "plugins": plugins,
        "command": command_of(settings, plugins),
    }  # fmt: skip
    claim = hash_content(Claim, content)
    agree(claim, folder)
    return claim


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
    found = finished_attacks(folder, Path(runs))
    single = out.suffix.lower() == ".json"
    if single and len(found) > 1:
        raise ConfigError(
            f"{folder} holds {len(found)} finished attacks, and {out} is one file.",
            next_step="Give a folder: --out claims.",
        )
    written = []
    for one in found:
        claim = make(one, by=by)
        name = _UNUSUAL.sub("_", f"{one.parent.parent.name}--{one.name}")[:200]
        written.append(out if single else out / f"{name}.json")
        write(written[-1], claim)
    return written
