"""Parts that break a promise, each caught with a sentence, from a shell too."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch

from fedre_privacy.active_server.detectors.base import Detector
from fedre_privacy.attacks.base import Attack, Context
from fedre_privacy.core.artifacts import Prototypes, Representations
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge
from fedre_privacy.defenses.base import Defense
from fedre_privacy.entanglement.rap import RAP
from fedre_privacy.eval.metrics.psnr import Psnr
from fedre_privacy.protocols.blocks import global_prototypes
from fedre_privacy.protocols.fedproto import FedProto
from fedre_privacy.runs.preparation import prepare
from fedre_privacy.testing import (
    check_attack,
    check_defense,
    check_detector,
    check_metric,
    check_protocol,
    check_scheme,
    known_problem,
    protocol_checks,
)
from fedre_privacy.testing.attack_checks import CHECKS as ATTACK_CHECKS
from fedre_privacy.testing.federation import settings_of


@dataclass(frozen=True, kw_only=True)
class Nearest(Attack):
    """The public image that is represented nearest."""

    consumes = (Representations, Prototypes)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.AUX_DATA})
    recovers = "inputs"

    def run(self, observation, context):
        rows, owners = observation.target_rows()
        with torch.no_grad():
            apart = [
                (observation.extractors[owner](observation.aux) - row).norm(dim=1)
                for row, owner in zip(rows, owners, strict=True)
            ]
        least = torch.stack(apart).nan_to_num(torch.inf).min(1)
        return Reconstruction.of(observation.aux[least.indices], least.values)


def test_a_plain_attack_of_one_method_keeps_the_promises():
    for check in ATTACK_CHECKS:
        try:
            check(Nearest)
        except Exception as error:
            assert type(error).__name__ == "NotApplicable", (check.__name__, error)


class Harming(Nearest):
    """It trains what it is given, in place."""

    def run(self, observation, context):
        for module in observation.extractors.values():
            module.train().requires_grad_(True)
            for parameter in module.parameters():
                parameter.data.zero_()
        return super().run(observation, context)


def test_no_attack_harms_the_modules_it_is_given():
    seen = known_problem.problem()
    before = [p.clone() for m in seen.extractors.values() for p in m.parameters()]
    Harming()(seen)
    after = [p for m in seen.extractors.values() for p in m.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert not any(p.requires_grad for p in after)


class Drawing(Nearest):
    """It draws from torch's global generator."""

    def run(self, observation, context):
        answer = super().run(observation, context)
        return Reconstruction.of(torch.rand_like(answer.images))


class Peeking(Nearest):
    """Its prior is its answer."""

    def run(self, observation, context):
        answer = super().run(observation, context)
        return Reconstruction.of(answer.images, answer.fit, prior=answer.images)


class Forgetful(Nearest):
    """It keeps pieces and does them again."""

    def run(self, observation, context: Context):
        answer = super().run(observation, context)
        context.cache.save("all", {"images": answer.images})
        return answer


class Median(FedProto):
    """A median needs single uploads, and does not say so."""

    def aggregate(self, server, uploads, task):
        means, labels = global_prototypes.gather(uploads)
        table, present = server.tensors["prototypes"].clone(), server.tensors["present"].clone()
        for label in labels.unique():
            table[label] = means[labels == label].median(0).values
            present[label] = True
        server.tensors |= {"prototypes": table, "present": present}


class LyingMedian(Median):
    """It says that sums will do."""

    sums = "classes"


class Looking(FedProto):
    """Clients look at their data when they receive."""

    def receive(self, client, message, task):
        len(client.train)
        super().receive(client, message, task)


class Untrue(RAP):
    """Its encoding is not what was mixed, and it does not say so."""

    def mix(self, draw):
        mix = super().mix(draw)
        return replace(mix, encoding=torch.full_like(mix.encoding, 1 / draw.num_classes))


class Upside(Psnr):
    """It says that lower values leak more."""

    higher_leaks = False


class Wordless(Psnr):
    """Nobody is told when to take it."""


class Idle(Defense):
    """It does nothing."""


class Silent(Detector):
    """It answers with a text."""

    level: int = knob(1, help="of nothing")

    def score(self, receipt):
        return "suspicious"


@pytest.mark.parametrize(
    ("check", "part", "sentence"),
    [
        (check_attack, Drawing, "gave another answer|global generator"),
        (check_attack, Peeking, "'prior' depends on the upload"),
        (check_attack, Forgetful, "does kept pieces again"),
        (check_protocol, LyingMedian, "makes something else than from single ones"),
        (check_protocol, Looking, "training_only = True"),
        (check_scheme, Untrue, "declares exact = True"),
        (check_metric, Upside, "nearer pictures do not"),
        (check_metric, Wordless, "does not say when to take it"),
        (check_defense, Idle, "It does nothing"),
        (check_detector, Silent, "It says 'suspicious'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_promise_is_told_in_a_sentence(check, part, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check(part)


def test_an_overridden_aggregation_needs_single_uploads_until_it_says_otherwise():
    name = protocol_checks.name_of(Median, protocol_checks.protocols)
    assert Median.sums == "" and FedProto.sums == LyingMedian.sums == "classes"
    settings = settings_of(name, defense=["secagg"])
    with pytest.raises(IncompatibleError, match="does not fit protocol"):
        prepare(settings, torch.device("cpu"))


@pytest.mark.slow
def test_a_shell_prints_a_line_for_each_check(tmp_path):
    (tmp_path / "my_metric.py").write_text(
        "from fedre_privacy.eval.metrics.psnr import Psnr\n"
        "class Upside(Psnr):\n    'Lower leaks more.'\n"
        "    when_to_use, higher_leaks = 'never', False\n"
    )

    def shell(*parts: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fedre_privacy.testing", *parts]
        return subprocess.run(
            command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True
        )

    broken = shell("--plugin", "my_metric", "metric:my_metric:Upside", "metric:psnr")
    assert broken.returncode == 1, broken.stderr
    (line,) = [one for one in broken.stdout.splitlines() if one.startswith("BROKEN")]
    assert line.startswith("BROKEN    metric my_metric:Upside: nearer pictures leak more: ")
    assert broken.stdout.splitlines()[-1] == "10 checks, 1 broken"
    absent = shell("metric:psnrr")
    assert absent.returncode == 2 and "psnr" in absent.stderr
    assert shell("metrics:psnr").returncode == 2
