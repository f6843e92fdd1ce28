"""What a list of defences guarantees together."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

from fedre_privacy.core.tradeoff import LINE_UP

from .accounting import curve_of, epsilon_of
from .base import CLIENT, RECORD, Defense, FederationFacts, Guarantee, PrivacyCost, Statement
from .learnt import changes_representations, learns

CLEAR = ("who takes part in which round", "losses and accuracies in the run's own record")
"""What no defence covers."""

Costs = Sequence[tuple[Defense, PrivacyCost]]


def _changes_uploads(defense: Defense) -> bool:
    own = type(defense)
    return own.defend is not Defense.defend or own.kept is not Defense.kept


def check_all(defenses: Sequence[Defense], facts: FederationFacts) -> list[str]:
    """Every reason why these defences cannot be used, alone or in this order."""
    problems = [problem for defense in defenses for problem in defense.check(facts)]
    noisy = [d for d in defenses if d.adds_noise]
    trainers = [d for d in defenses if d.trainer() is not None]
    for several, what in ((noisy, "add noise to uploads"), (trainers, "replace local training")):
        if len(several) > 1:
            names = " and ".join(f"'{d.name}'" for d in several)
            problems.append(f"Defences {names} both {what}; give one.")
    for defense in noisy:
        cost = defense.cost(facts)
        if cost is None or cost.unit != RECORD:
            continue
        place = list(defenses).index(defense)
        first = [d for d in defenses[:place] if _changes_uploads(d)]
        later = [d for d in defenses[place + 1 :] if d.represent() is not None]
        for others, where, why in (
            (first, "before", "which would change how much one record moves the upload"),
            (later, "after", "which would change representations that it has bounded"),
        ):
            names = ", ".join(d.name for d in others if d.name != "clip")
            if names:
                problems.append(
                    f"Defence '{defense.name}' with unit=record must come {where} {names}, {why}. "
                    "Swap them."
                )
    learnt = [d for d in defenses if learns(d)]
    for one, other in itertools.product(learnt, trainers):
        problems.append(
            f"Defence '{one.name}' is learnt in local training, which '{other.name}' replaces: its "
            "guarantee would not hold. Give one."
        )
    for one, other in itertools.product(filter(changes_representations, learnt), noisy):
        cost = other.cost(facts)
        if cost is not None and cost.unit == RECORD:
            problems.append(
                f"Defence '{one.name}' may let a record change the representations of others, so "
                f"that the noise of '{other.name}' for one record is not enough. Use unit=client."
            )
    sums = [d for d in defenses if type(d).seen is not Defense.seen]
    problems += [
        f"Defence '{d.name}' must come last, as it acts on what is sent. Move it to the end."
        for d in sums
        if d is not defenses[-1]
    ]
    deltas = {c.delta for d in defenses if (c := d.cost(facts)) and c.delta and c.unit == RECORD}
    if len(deltas) > 1:
        problems.append(
            "Defences for one record state epsilon at different deltas: "
            f"{', '.join(f'{d:g}' for d in sorted(deltas))}. Give them the same."
        )
    return problems


def state(defenses: Sequence[Defense], facts: FederationFacts) -> Statement:
    """Add up what defences spend over the whole run, and say what stays in the clear."""
    costs = [(d, cost) for d in defenses if (cost := d.cost(facts)) is not None]
    guarantees: list[Guarantee] = []
    reasons: list[str] = []
    for unit in (CLIENT, RECORD):
        own = [(d, cost) for d, cost in costs if cost.unit == unit]
        lacking = _missing_guarantee(unit, own, facts) if own else None
        if own and not lacking:
            guarantees.append(_compose(unit, own, facts))
        elif lacking and not guarantees:  # what hides a whole client hides each of its records
            reasons.append(lacking)
    return Statement(
        tuple(guarantees),
        tuple(reasons),
        (*dict.fromkeys(kind.tells for kind in facts.kinds if kind.tells), *CLEAR) if costs else (),
        tuple(d.name for d in defenses if d.cost(facts) is None),
    )


def _missing_guarantee(unit: str, costs: Costs, facts: FederationFacts) -> str | None:
    """Why there is no guarantee for a unit, if there is none."""
    names = " and ".join(d.name for d, _ in costs)
    if unit == RECORD:
        if facts.trains and not any(d.trainer() is not None for d, _ in costs):
            return (
                f"{names}: no guarantee for a record, because the extractor that made the uploads "
                "was trained on the same records without noise; add dp-sgd"
            )
        if not facts.training_only:
            return (
                f"{names}: no guarantee for a record, because clients of protocol "
                f"'{facts.protocol}' are not known to use their data in local training only"
            )
    covers = tuple(kind for _, cost in costs for kind in cost.covers)
    bare = [kind.__name__ for kind in facts.kinds_with_values if kind not in covers]
    if not bare:
        return None
    remedy = "; add gaussian with unit=record" if unit == RECORD else ""
    return f"{names}: no guarantee for a {unit}, because {', '.join(bare)} go out bare{remedy}"


def _compose(unit: str, costs: Costs, facts: FederationFacts) -> Guarantee:
    delta = max(cost.delta for _, cost in costs)
    accountant = next((c.accountant for d, c in costs if d.trainer() is not None), "prv")
    by_client = []
    for client in range(facts.clients):
        releases = tuple(r for _, cost in costs for r in cost.releases[client])
        pure = sum(cost.pure[client] for _, cost in costs)
        spent = epsilon_of(releases, delta, accountant) if delta else 0.0
        by_client.append(spent + pure)
    worst = max(range(facts.clients), key=lambda k: by_client[k])
    apart = [cost.from_nothing(worst) for _, cost in costs]
    line_up = curve_of(
        tuple(r for releases, _ in apart for r in releases), sum(p for _, p in apart), accountant
    ).most(LINE_UP)
    assumptions = dict.fromkeys(text for _, cost in costs for text in cost.assumptions)
    return Guarantee(
        unit=unit,
        epsilon=max(by_client),
        delta=delta,
        by_client=tuple(by_client),
        covers=tuple(kind.__name__ for kind in facts.kinds_with_values),
        by=tuple(d.name for d, _ in costs),
        assumptions=tuple(assumptions),
        line_up=line_up,
    )


def record(defenses: Sequence[Defense], facts: FederationFacts) -> dict[str, Any]:
    """What a run's record says: settings known to an adaptive attacker, and the statement.

    Returns:
        ``defense``: one mapping per defence, derived settings filled in; ``privacy``: the
        statement with its sentences under ``says``, and what no attack exceeds under ``bound``.
    """
    statement = state(defenses, facts)
    return {
        "defense": [defense.public(facts) for defense in defenses],
        "privacy": {
            **json.loads(json.dumps(dataclasses.asdict(statement))),
            "says": statement.lines(),
            "bound": statement.bound(),
        },
    }
