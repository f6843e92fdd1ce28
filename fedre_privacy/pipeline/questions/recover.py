"""Prototypes worked out of the uploads, as targets for a further attack."""

from __future__ import annotations

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.types import RecoveredPrototypes
from fedre_privacy.eval import PublicImages

from ..observe import observe
from ..runs import Run
from ..settings import AttackSettings
from ..targets import TargetSource
from .base import only_kinds

NOTES = 3
"""Notes of the first stage that a refusal repeats."""


def recover(
    run: Run, settings: AttackSettings, source: TargetSource, aux: PublicImages
) -> RecoveredPrototypes:
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
    observation = observe(
        run,
        settings.threat,
        source.round,
        targets,
        aux,
        staleness=settings.evaluation.staleness,
        attacker=settings.evaluation.attacker,
    )
    found = via(observation, Context(settings.evaluation.seed))
    if not isinstance(found, RecoveredPrototypes):
        raise IncompatibleError(f"Attack '{via.name}' does not return prototypes.")
    if not bool(found.vectors.isfinite().all(1).any()):
        said = "; ".join(found.notes[:NOTES])
        more = f" (and {len(found.notes) - NOTES} more)" if len(found.notes) > NOTES else ""
        raise IncompatibleError(
            f"Attack '{via.name}' recovered no prototype of {run.name}. {said}{more}.",
            next_step="Attack the uploads themselves: --target uploaded.",
        )
    return found
