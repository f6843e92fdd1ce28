"""Descriptions: what a part does, what it needs, and every setting with its unit and range."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from fedre_privacy.attacks.base import attacks, mismatch
from fedre_privacy.core.config import knobs
from fedre_privacy.core.registry import Registry
from fedre_privacy.core.types import THREAT_MODELS
from fedre_privacy.data.base import datasets
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.eval.metrics.base import metrics
from fedre_privacy.models.zoo import architectures
from fedre_privacy.partition.base import partitions
from fedre_privacy.pipeline.runs import Run
from fedre_privacy.pipeline.settings import TrainSettings
from fedre_privacy.pipeline.targets import KINDS
from fedre_privacy.protocols.base import protocols

from .output import Output, print_table

REGISTRIES: tuple[tuple[str, Registry[Any]], ...] = (
    ("entanglement schemes", schemes),
    ("data sets", datasets),
    ("partitions", partitions),
    ("architectures", architectures),
    ("metrics", metrics),
)


def explain(parts: Sequence[Any], settings: TrainSettings | None, output: Output) -> None:
    """Print each part's docstring and settings, then the groups of settings."""
    sections = {"protocol": "protocol", "data set": "data", "partition": "partition"}
    for part in parts:
        kind = next(
            (
                what
                for what, registry in _kinds().items()
                if part.name in registry.names() and isinstance(part, registry.get(part.name))
            ),
            "part",
        )
        output.text(f"{kind} {part.name}  ({type(part).__module__}.{type(part).__qualname__})")
        output.text()
        output.text(inspect.getdoc(type(part)) or "")
        _print_knobs(type(part), sections.get(kind, kind), output)
    if settings is not None:
        for name, group in (
            ("model", settings.model),
            ("train", settings.train),
            ("record", settings.record),
        ):
            output.text(f"settings of {name}")
            _print_knobs(type(group), name, output)


def _kinds() -> dict[str, Registry[Any]]:
    return {"attack": attacks, "protocol": protocols, "data set": datasets, "partition": partitions}


def _print_knobs(cls: type, section: str, output: Output) -> None:
    rows = [
        {
            "setting": f"{section}.{knob.name}",
            "default": str(knob.default),
            "allowed": " ".join(part for part in (knob.bounds, knob.unit) if part) or "-",
            "meaning": knob.help,
        }
        for knob in knobs(cls)
    ]
    output.text()
    if rows:
        print_table(rows, output.text)
        output.text()


def list_all(output: Output) -> None:
    """Print every plugin with what it reads, needs or sends, and where it comes from."""
    rows = []
    for entry in attacks.entries():
        if entry.broken:
            rows.append(
                {
                    "attack": entry.name,
                    "reads": f"BROKEN: {entry.broken}",
                    "needs": "",
                    "recovers": "",
                    "from": entry.origin,
                }
            )
            continue
        cls = attacks.get(entry.name)
        reads = ", ".join(kind.__name__ for kind in cls.consumes)
        rows.append(
            {
                "attack": entry.name,
                "reads": reads,
                "needs": ", ".join(sorted(cls.needs)),
                "recovers": cls.recovers,
                "from": entry.origin,
            }
        )
    print_table(rows, output.text)
    output.text()
    rows = []
    for entry in protocols.entries():
        sends = f"BROKEN: {entry.broken}"
        if not entry.broken:
            kinds = protocols.get(entry.name).uploads
            sends = ", ".join(kind.__name__ for kind in kinds) or "nothing"
        rows.append({"protocol": entry.name, "uploads": sends, "from": entry.origin})
    print_table(rows, output.text)
    output.text()
    rows = [
        {
            "threat model": name,
            "grants": ", ".join(sorted(model.grants)),
            "rounds": model.rounds,
            "who": model.summary,
        }
        for name, model in THREAT_MODELS.items()
    ]
    print_table(rows, output.text)
    for title, registry in REGISTRIES:
        output.text()
        named = [
            entry.name + (f" (BROKEN: {entry.broken})" if entry.broken else "")
            for entry in registry.entries()
        ]
        output.text(f"{title}: {', '.join(named)}")


def list_for(run: Run, threat: str, output: Output) -> None:
    """Print which attack can read which target of a run, or why not."""
    uploaded = {kind.kind for kind in run.settings.protocol.uploads}
    rows = []
    for target, kind in KINDS.items():
        for name in attacks.names():
            problems = mismatch(attacks.get(name), THREAT_MODELS[threat], {kind})
            real = "uploaded" if target in uploaded else "counterfactual"
            rows.append(
                {
                    "target": target,
                    "": real,
                    "attack": name,
                    "possible": "; ".join(problems) or "yes",
                }
            )
    print_table(rows, output.text)
    kept = ", ".join(map(str, run.kept_rounds())) or "none"
    output.text(f"\nextractors kept for rounds: {kept}")
