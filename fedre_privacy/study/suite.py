"""The attacks that a benchmark runs on a protocol unless it is told which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedre_privacy.core.errors import ConfigError, unknown
from fedre_privacy.core.types import (
    Artifact,
    Counts,
    EntangledRep,
    GradientState,
    HeadState,
    LowRankUpdate,
    ModelState,
    Prototypes,
    Representations,
    SmallModelState,
)
from fedre_privacy.runs.settings import RECOVERED, TARGETS, TrainSettings

Values = Mapping[str, Any]

STRONG, PAPER, REALISTIC = "strong", "fedre-paper", "realistic"


def _attack(name: str, target: str, threat: str, **more: Any) -> dict[str, Any]:
    return {"attack": {"name": name}, "target": target, "threat": threat, **more}


SMALL = {"eval": {"fewest_first": True}}
"""Of prototypes, those of the fewest images: one image's is that image's representation."""

LOSS = _attack("loss-membership", "membership", REALISTIC)
LOSS_OF_HEAD = _attack("loss-membership", "membership", PAPER)
"""A head computes a loss only with the client's extractor, which `PAPER` grants."""

BY_UPLOAD: Mapping[type[Artifact], Sequence[Values]] = {
    Representations: (
        _attack("dip", "uploaded", PAPER),
        _attack("linear", "uploaded", STRONG),
        _attack("membership", "uploaded", STRONG),
    ),
    Prototypes: (
        _attack("dip", "uploaded", PAPER, **SMALL),
        _attack("linear", "uploaded", STRONG, **SMALL),
        _attack("membership", "uploaded", STRONG),
    ),
    EntangledRep: (
        _attack("disentangle", "uploaded", STRONG),
        _attack("dip", RECOVERED, STRONG, **SMALL),
        _attack("linear", RECOVERED, STRONG, **SMALL),
        _attack("membership", "uploaded", STRONG),
    ),
    HeadState: (
        _attack("head", "uploaded", PAPER),
        _attack("dip", RECOVERED, PAPER, via={"name": "head"}, **SMALL),
        _attack("linear", RECOVERED, STRONG, via={"name": "head"}, **SMALL),
        LOSS_OF_HEAD,
    ),
    ModelState: (
        _attack("head", "uploaded", PAPER),
        _attack("dip", RECOVERED, PAPER, via={"name": "head"}, **SMALL),
        _attack("linear", RECOVERED, STRONG, via={"name": "head"}, **SMALL),
        _attack("update-inversion", "update", PAPER),
        LOSS,
    ),
    SmallModelState: (_attack("update-inversion", "update", PAPER), LOSS),
    LowRankUpdate: (_attack("update-inversion", "update", PAPER), LOSS),
    GradientState: (_attack("inverting-gradients", "update", PAPER), LOSS),
}
"""Attacks by what is uploaded. The strongest attack on images decides the place on the frontier:
an optimiser that needs the extractor alone, a linear map fitted to public images, and of whole
models also the update itself."""

LABELS = _attack("labels", "uploaded", REALISTIC)
"""Run on everything that is uploaded and that the label attack can read."""


def default_suite(training: TrainSettings, *, targets: int | None = None) -> list[Values]:
    """Attacks for a protocol's uploads: images, prototypes, membership and labels where they apply.

    Args:
        targets: targets per attack; None keeps the default.
    """
    from fedre_privacy.attacks.base import attacks

    chosen = [
        entry
        for kind in training.protocol.uploads
        for entry in BY_UPLOAD.get(kind, ())
        if not (training.protocol.unseen and entry["target"] in ("update", "membership"))
    ]
    readable = attacks.get("labels").consumes
    every_round = [k for k in training.protocol.uploads if k is not Counts]  # sent once, at first
    if any(issubclass(k, readable) for k in every_round):
        chosen.append(LABELS)
    return [_with_targets(entry, targets) for entry in chosen]


def named_suite(names: Sequence[str], *, targets: int | None = None) -> list[Values]:
    """Attacks given as ``attack``, ``attack@target`` or ``attack@target@threat``.

    Raises:
        ConfigError: an unknown target.
    """
    out = []
    for name in names:
        attack, _, rest = name.partition("@")
        target, _, threat = rest.partition("@")
        if target and target not in TARGETS:
            raise ConfigError(unknown("target", target, TARGETS))
        entry = _attack(attack, target or "uploaded", threat or PAPER)
        out.append(_with_targets(entry, targets))
    return out


def _with_targets(entry: Values, targets: int | None) -> Values:
    if targets is None:
        return dict(entry)
    return {**entry, "eval": {**entry.get("eval", {}), "targets": targets}}
