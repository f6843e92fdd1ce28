"""Prototypes and representations worked out of the uploads, as targets for a further attack."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.outcomes import RecoveredPrototypes, RecoveredRepresentations
from fedre_privacy.core.types import Knowledge
from fedre_privacy.eval import PublicImages
from fedre_privacy.experiments.observation import observe
from fedre_privacy.experiments.recovered_rows import Recovered
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings
from fedre_privacy.sandbox.client import run_attack

from .base import only_kinds

_FOUND: WeakKeyDictionary[Run, dict[tuple[object, ...], Recovered]] = WeakKeyDictionary()
"""Answers of first stages by run: a suite asks several attacks about the same ones."""

NOTES = 3
"""Notes of the first stage that a refusal repeats."""


def recover(
    run: Run, settings: AttackSettings, source: TargetSource, aux: PublicImages
) -> Recovered:
    """Run the first stage, ``via``, on all clients' uploads of the attacked round.

    Raises:
        ConfigError: no such stage was chosen.
        IncompatibleError: it cannot read the uploads, the threat model is too weak, or it recovered
            nothing.
    """
    via = settings.via
    if via is None:
        raise ConfigError("Target 'recovered-prototypes' needs an attack that recovers them (via).")
    targets = only_kinds(source.uploads.values(), set(via.consumes))
    if not targets:
        raise IncompatibleError(
            f"Attack '{via.name}' reads {', '.join(k.__name__ for k in via.consumes)}; "
            f"{run.settings.protocol.name} uploads none of them.",
            next_step="Choose another first stage, for example --set via.name=head.",
        )
    evaluation = settings.evaluation
    asked = (
        via,
        settings.threat,
        source.round,
        evaluation.staleness,
        evaluation.attacker,
        evaluation.seed,
        tuple(aux.images.shape),
        (run.folder / "record.json").stat().st_mtime_ns,
    )
    known = _FOUND.setdefault(run, {})
    if asked in known:
        return known[asked]
    observation = observe(source, settings, targets, aux)
    context = Context(source.attack_seed)
    singles = via.answers == "representations"
    kind: type[Recovered] = RecoveredRepresentations if singles else RecoveredPrototypes
    played = run_attack(via, observation, context, outcome=kind, hidden=run.secrets())
    found = played.outcome
    if not isinstance(found, RecoveredPrototypes | RecoveredRepresentations):
        raise IncompatibleError(f"Attack '{via.name}' does not return prototypes.")
    if not bool(found.vectors.isfinite().all(1).any()):
        said = "; ".join(found.notes[:NOTES])
        more = f" (and {len(found.notes) - NOTES} more)" if len(found.notes) > NOTES else ""
        raise IncompatibleError(
            f"Attack '{via.name}' recovered no prototype of {run.name}. {said}{more}.",
            next_step=instead(run, settings, source.round),
        )
    known[asked] = found
    return found


def instead(run: Run, settings: AttackSettings, round: int) -> str:
    """What lets a first stage recover more: the models of all rounds, or else the uploads alone."""
    many = round > 1 and any(kind.over_rounds for kind in run.settings.protocol.uploads)
    if many and Knowledge.ALL_EXTRACTORS not in settings.threat.grants:
        return "Let the attacker hold the models of all rounds: --threat strong."
    if many and len(run.kept_rounds()) < round:
        return "Train again with --set record.keep_every=1, which keeps the models of all rounds."
    return "Attack the uploads themselves: --target uploaded."
