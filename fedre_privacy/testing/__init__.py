"""Checks of every registered part, built in or somebody's own: does it keep what it promises?

    from fedre_privacy.testing import check_attack
    check_attack(MyAttack)  # AssertionError with a sentence where it does not

In tests, `checks` gives them one by one:

    @pytest.mark.parametrize("check", [check for _, check in checks("attack", "my-attack")])
    def test_my_attack(check):
        check()

From a shell ``python -m fedre_privacy.testing --plugin my_module`` prints a line for each. They use
a small federation on digits, trained once in a process, and take seconds for most parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedre_privacy.active_server.base import steerings
from fedre_privacy.active_server.detectors.base import detectors
from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.shadow_attacks.base import shadow_attacks
from fedre_privacy.core.errors import unknown_name
from fedre_privacy.core.registry import NameTable, Registry
from fedre_privacy.data.base import datasets
from fedre_privacy.defenses.base import defenses
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.eval.metrics.base import metrics
from fedre_privacy.experiments.questions.base import questions
from fedre_privacy.models.zoo import architectures
from fedre_privacy.partition.base import partitions
from fedre_privacy.protocols.base import protocols
from fedre_privacy.threats.base import threats

from . import (
    attack_checks,
    known_problem,
    learnt_checks,
    message_checks,
    part_checks,
    protocol_checks,
    scheme_checks,
)
from .federation import NotApplicable as NotApplicable

Check = Callable[[Any], None]
"""Takes a part: its class, or a threat model itself."""


@dataclass(frozen=True)
class Suite:
    """The parts of one kind, and what each of them is checked for.

    Args:
        some: checks of those parts for which `applies` is true.
    """

    registry: NameTable[Any]
    checks: Sequence[Check]
    some: Sequence[Check] = ()
    applies: Callable[[Any], bool] = bool

    def of(self, part: Any) -> Sequence[Check]:
        """The checks of a part."""
        some = self.some if self.applies(part) else ()
        return (*self.checks, *some, part_checks.it_says_when_to_use_it)

    def part(self, name: str) -> Any:
        """The part of a name, or of ``module:Class``."""
        if ":" in name and isinstance(self.registry, Registry):
            return self.registry.own(name)
        return self.registry.get(name)

    def run(self, part: Any) -> None:
        """Make all checks that apply to a part.

        Raises:
            AssertionError: a promise that is not kept, in a sentence.
        """
        for check in self.of(part):
            try:
                check(part)
            except NotApplicable:
                continue


SUITES: dict[str, Suite] = {
    "attack": Suite(attacks, attack_checks.CHECKS, known_problem.CHECKS, known_problem.applies),
    "protocol": Suite(protocols, protocol_checks.CHECKS),
    "scheme": Suite(schemes, scheme_checks.CHECKS),
    "defense": Suite(defenses, (*message_checks.DEFENSE_CHECKS, *learnt_checks.CHECKS)),
    "metric": Suite(metrics, part_checks.METRIC_CHECKS),
    "threat": Suite(threats, (part_checks.it_says_who_it_is,)),
    "question": Suite(questions, (part_checks.somebody_answers_it,)),
    "dataset": Suite(datasets, (part_checks.it_loads_the_same_bytes,)),
    "partition": Suite(partitions, (part_checks.it_shares_every_class_out,)),
    "model": Suite(architectures, (part_checks.it_makes_features,)),
    "detector": Suite(detectors, (message_checks.any_message_has_a_number_or_none,)),
    "steering": Suite(steerings, message_checks.STEERING_CHECKS),
    "shadow-attack": Suite(shadow_attacks, (part_checks.members_score_higher,)),
}
"""What is checked, by the kind of part."""

check_attack = SUITES["attack"].run
check_protocol = SUITES["protocol"].run
check_scheme = SUITES["scheme"].run
check_defense = SUITES["defense"].run
check_metric = SUITES["metric"].run
check_threat = SUITES["threat"].run
check_question = SUITES["question"].run
check_dataset = SUITES["dataset"].run
check_partition = SUITES["partition"].run
check_model = SUITES["model"].run
check_detector = SUITES["detector"].run
check_steering = SUITES["steering"].run
check_shadow_attack = SUITES["shadow-attack"].run


def checks(kind: str, name: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """The checks of one part, each with its name.

    Args:
        kind: of `SUITES`. name: a registered name, or ``module:Class`` of an imported module.

    Yields:
        A name and a function that raises AssertionError where the promise is not kept, and
        NotApplicable where it says nothing of this part.

    Raises:
        ValueError: there is no such kind.
        FedreError: there is no such part, or it cannot be imported.
    """
    if kind not in SUITES:
        raise ValueError(unknown_name("kind of part", kind, list(SUITES)))
    suite = SUITES[kind]
    part = suite.part(name)
    for check in suite.of(part):
        yield check.__name__.replace("_", " "), partial(check, part)
