"""What attacks on representations promise: they find images that nothing hides.

The known problem: digits seen through a random rotation, which loses nothing, so that an attack
which does its work finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Attack, attacks
from fedre_privacy.core.artifacts import Artifact, EntangledRep, Prototypes, Representations
from fedre_privacy.core.config import build, knobs
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import (
    Knowledge,
    LocalTrainingFacts,
    Mixture,
    Observation,
    Rehearsal,
    Truth,
    Upload,
)
from fedre_privacy.data.base import ImageData
from fedre_privacy.data.digits import Digits
from fedre_privacy.eval import PublicImages, Scores
from fedre_privacy.eval.metrics.psnr import Psnr
from fedre_privacy.eval.verdict import LEAKS, NOT_EXPLAINED
from fedre_privacy.experiments.questions.images import TARGET, ImageTrial
from fedre_privacy.experiments.targets import TargetGroup
from fedre_privacy.experiments.truth_check import agreement
from fedre_privacy.models.split import Normalise
from fedre_privacy.runs.settings import AttackSettings, Evaluation
from fedre_privacy.threats.base import threats

from .federation import NotApplicable, equal, expect, name_of, once

OWNERS = ((1, 3), (4, 3))
"""(client, round) of the uploads; five digits each, so that a CPU tile of eight spans both."""
MARGIN_DB = 4.0
"""By how much an attack is better than the best picture given for every target."""
QUICK: dict[str, dict[str, Any]] = {
    "dip": {"steps": 60, "tv": 1.0},
    "pixel": {"steps": 200, "tv": 1.0},
    "joint-disentangle": {"steps": 60, "tv": 1.0},
    "decoder": {"updates": 20, "width": 4},
    "diffusion": {"updates": 20, "width": 4, "layers": 2, "steps": 8, "samples": 2},
    "ensemble-kalman": {"members": 100, "steps": 3},
    "mean": {"first": {"name": "linear"}, "second": {"name": "ensemble-kalman", "members": 100}},
}
"""Settings of built-in attacks that are enough for the known problem."""
BRIEF: dict[str, dict[str, Any]] = {
    "dip": {"steps": 4, "channels": (4, 4), "depth": 4},
    "pixel": {"steps": 6},
    "joint-disentangle": {"steps": 4, "channels": (4, 4)},
    "linear": {"views": 1, "match_targets": False},
    "shadow": {"views": 1, "shadows": 2},
    "decoder": {"updates": 4, "width": 4, "views": 1, "match_targets": False},
    "diffusion": {"updates": 2, "width": 4, "layers": 2, "views": 1, "steps": 3, "samples": 2},
    "ensemble-kalman": {"views": 1, "members": 20, "steps": 2},
    "mean": {
        "first": {"name": "linear", "views": 1, "victims": 0, "match_targets": False},
        "second": {"name": "ensemble-kalman", "views": 1, "members": 20, "steps": 2},
    },
}
"""Settings for promises that hold however short an attack is."""


class Whole(nn.Module):
    """A model of which only the extractor is used."""

    def __init__(self, extractor: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor


class Still:
    """The training of clients that do not train at all."""

    def blank(self, client: int, seed: int) -> nn.Module:
        raise AssertionError("It draws a model though the clients' start is known.")

    def __call__(
        self,
        client: int,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        rounds: Sequence[int],
        seed: int,
    ) -> dict[int, nn.Module]:
        expect(len(images) == len(labels) == 5, "It trains on another number of images than 5.")
        return dict.fromkeys(rounds, model)


@cache
def digits() -> ImageData:
    """120 digits, 12 of each class, 16x16."""
    return Digits(size=16, per_class=12).load()


def originals() -> Tensor:
    """Ten digits, one of each class, (10, 1, 16, 16) in [0, 1]."""
    return digits().images[:10].float() / 255


@cache
def rotation(seed: int) -> nn.Module:
    """An extractor that loses nothing: 256 pixels times a random orthogonal matrix."""
    rng = torch.Generator().manual_seed(seed)
    linear = nn.utils.skip_init(nn.Linear, 256, 256, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.linalg.qr(torch.randn(256, 256, generator=rng)).Q)
    return nn.Sequential(Normalise(), nn.Flatten(), linear).eval().requires_grad_(False)


def observation_of(artifacts: Sequence[Artifact], clients: int = 2) -> Observation:
    """Uploads of clients that never leave their start, seen by an attacker who knows everything."""
    extractors = {owner: rotation(seed) for seed, owner in enumerate(OWNERS[:clients])}
    targets = tuple(
        Upload(client, round, (artifact,))
        for (client, round), artifact in zip(extractors, artifacts, strict=True)
    )
    return Observation(
        threat=replace(threats.get("strong"), grants=frozenset(Knowledge)),
        targets=targets,
        uploads=targets,
        broadcasts=(),
        extractors=extractors,
        image_shape=(1, 16, 16),
        num_classes=10,
        aux=digits().images[10:].float() / 255,
        aux_labels=digits().labels[10:],
        training=LocalTrainingFacts(0.1, 1, 5, {client: 5 for client, _ in extractors}),
        initial={(client, 0): Whole(net) for (client, _), net in extractors.items()},
        rehearse=cast(Rehearsal, Still()),  # all that attacks on representations ask of it
    )


@cache
def representations() -> tuple[Tensor, ...]:
    """What the two clients make of their five digits each, (5, 256)."""
    with torch.no_grad():
        return tuple(rotation(seed)(part) for seed, part in enumerate(originals().split(5)))


def problem(change: Callable[[Tensor], Tensor] = lambda reps: reps) -> Observation:
    """Ten digits of two clients, five each, whose representations may be changed."""
    sent = [change(reps.clone()) for reps in representations()]
    return observation_of([Representations(r, torch.zeros(5, dtype=torch.int64)) for r in sent])


def applies(cls: type[Attack]) -> bool:
    """Whether an attack recovers images from representations of clients that nobody steers."""
    reads = issubclass(Representations, cls.consumes) and cls.answers == "images"
    return reads and not cls.steered and not cls.particular


def attack_of(cls: type[Attack], table: dict[str, dict[str, Any]], **settings: Any) -> Attack:
    """An attack with the settings that a table has for it; briefly, few of each loop."""
    name_of(cls, attacks)
    known = {knob.name for knob in knobs(cls)}
    few = {name: count for name, count in cls.loops.items() if name in known}
    given = {**(few if table is BRIEF else {}), **table.get(cls.name, {}), **settings}
    attack = build(cls, given, at="attack", problems=[])
    assert attack is not None
    return attack


def psnr_db(images: Tensor) -> float:
    """PSNR of each answer against the digit sought, averaged (dB)."""
    mse = (images - originals()).square().flatten(1).mean(1)
    return float((-10 * mse.clamp(min=1e-12).log10()).mean())


@cache
def floor() -> float:
    """What one picture given for every target scores: the best of all constants and means (dB)."""
    rest = digits().images[10:].float() / 255
    guesses = [torch.tensor(level / 100) for level in range(101)]
    guesses += [rest.mean(0), rest.mean(), originals().mean(0)]
    return max(psnr_db(guess.expand_as(originals())) for guess in guesses)


@once
def answer_of(cls: type[Attack]) -> Reconstruction:
    """What an attack finds in the known problem."""
    answer: Reconstruction = attack_of(cls, QUICK)(problem())
    return answer


@once
def short_answer_of(cls: type[Attack]) -> Reconstruction:
    """What an attack finds there with few steps."""
    answer: Reconstruction = attack_of(cls, BRIEF)(problem())
    return answer


def card_of(attack: Attack, seen: Observation, answer: Reconstruction) -> Scores:
    """The card of an answer, each digit a unit of its own."""
    truth = originals()
    count, number = len(truth), torch.arange(len(truth))
    owners = torch.tensor([client for client, _ in seen.target_rows()[1]])
    pairs = Mixture(number, number, torch.ones(count), count)
    group = TargetGroup(
        "representations", False, seen.targets, Truth(truth, number, owners, pairs, number, number)
    )
    assert seen.aux is not None and seen.aux_labels is not None
    public = PublicImages(seen.aux, seen.aux_labels.long())
    settings = AttackSettings(
        "representations", attack, seen.threat, Evaluation(), {"psnr": Psnr()}
    )
    trial = ImageTrial(
        cast(Any, None), settings, 0, seen, "representations", False, 3, groups={TARGET: group},
        public=public, unit="representation", agreement=agreement(seen, group, public.images),
    )  # fmt: skip
    card = trial.score(answer)
    assert isinstance(card, Scores)
    return card


def rows_equal(one: Reconstruction, other: Reconstruction, rows: Tensor) -> bool:
    """Whether row i of an answer is row `rows[i]` of another, in images, fit and trace."""
    pairs = [(one.images, other.images[rows]), (one.fit, other.fit[rows])]
    pairs.append((one.trace, other.trace[:, rows]))
    return all(equal(own, theirs) for own, theirs in pairs)


# --- the promises --------------------------------------------------------------------------------


def finds_images_that_nothing_hides(cls: type[Attack]) -> None:
    """It beats every picture given for all targets, target by target, and its prior does not."""
    answer = answer_of(cls)
    reached = psnr_db(answer.images)
    expect(
        reached > floor() + MARGIN_DB,
        f"It reaches {reached:.1f} dB; one picture for all targets reaches {floor():.1f}.",
    )
    errors = (answer.images[:, None] - originals()[None]).square().flatten(2).mean(2)
    right = int((errors.argmin(1) == torch.arange(10)).sum())
    expect(right > 6, f"{right} of 10 answers are nearest to the digit that they stand for.")
    expect(psnr_db(answer.prior) < floor(), "Its prior is better than one picture for all.")


def finds_nothing_in_other_uploads(cls: type[Attack]) -> None:
    """Given the upload of another image it does not answer the one sought."""
    answer = attack_of(cls, QUICK)(problem(lambda reps: reps.roll(1, 0)))
    expect(psnr_db(answer.images) < floor() + 0.5, "It answers what it was not shown.")


def its_answers_explain_the_uploads(cls: type[Attack]) -> None:
    """The card of what it finds says that it leaks, and that answers explain the uploads."""
    card = card_of(attack_of(cls, QUICK), problem(), answer_of(cls))
    share = card.get("explained")
    least = share.over_interval[0] if share.over_interval else -1.0
    value, floors = share.value, -1.0 if share.floor is None else share.floor
    above = value is not None and 0 <= floors < value <= 1
    expect(least > 0 and above, "Its answers explain no more of the uploads than floors do.")
    expect(card.verdict.word == LEAKS, f"The verdict is '{card.verdict.word}': it should leak.")


def uploads_of_others_are_not_explained(cls: type[Attack]) -> None:
    """Where rows are in another order than the truth, the verdict says so."""
    attack, seen = attack_of(cls, BRIEF), problem(lambda reps: reps.roll(1, 0))
    card = card_of(attack, seen, attack(seen))
    expect(card.verdict.word == NOT_EXPLAINED, f"The verdict is '{card.verdict.word}'.")
    expect("order of rows" in card.verdict.because, "The verdict does not name the order of rows.")


def shapes_and_ranges(cls: type[Attack]) -> None:
    """Images in [0, 1], a fit that is no less than 0, a trace with ascending steps."""
    answer = short_answer_of(cls)
    for images in (answer.images, answer.prior):
        expect(images.shape == (10, 1, 16, 16) and not images.requires_grad, "Images are amiss.")
        expect(0 <= float(images.min()) <= float(images.max()) <= 1, "Images leave [0, 1].")
    expect(bool((answer.fit >= 0).all()), "Its fit is below 0.")
    expect(answer.trace.shape == (len(answer.trace_steps), 10), "Its trace has another shape.")
    expect(bool((answer.trace_steps.diff() > 0).all()), "Steps of its trace do not ascend.")
    expect(
        not answer.diverged.any() and bool(answer.stopped_because),
        "It marks sound answers as diverged, or does not say why it stopped.",
    )


def other_kinds_are_read_as_well(cls: type[Attack]) -> None:
    """The same vector as a prototype or an entangled representation has the same answer."""
    attack = attack_of(cls, BRIEF)
    rows = [reps[:1] for reps in representations()]
    kinds: dict[type[Artifact], Callable[[Tensor], Artifact]] = {
        Prototypes: lambda r: Prototypes(r, torch.tensor([1])),
        EntangledRep: lambda r: EntangledRep(r[0], torch.ones(10) / 10),
    }
    plain = attack(
        observation_of([Representations(r, torch.zeros(1, dtype=torch.int64)) for r in rows])
    )
    for kind, build_one in kinds.items():
        if issubclass(kind, cls.consumes):
            answer = attack(observation_of([build_one(r) for r in rows]))
            same = rows_equal(answer, plain, torch.arange(2))
            expect(same, f"The same vectors as {kind.__name__} have another answer.")


def the_order_of_uploads_changes_nothing(cls: type[Attack]) -> None:
    """Answers follow their targets, bit for bit."""
    seen = problem()
    turned = attack_of(cls, BRIEF)(replace(seen, targets=seen.targets[::-1]))
    rows = torch.arange(10).roll(5)
    expect(
        rows_equal(turned, short_answer_of(cls), rows), "Answers depend on the order of uploads."
    )


def a_start_is_a_targets_own(cls: type[Attack]) -> None:
    """What is shown before fitting does not depend on who else is attacked."""
    seen = problem()
    alone = attack_of(cls, BRIEF)(replace(seen, targets=seen.targets[1:]))
    near = torch.allclose(alone.prior, short_answer_of(cls).prior[5:], atol=1e-5)
    expect(near, "The start of a target depends on which others are attacked.")


def the_chunk_changes_nothing(cls: type[Attack]) -> None:
    """How many targets are worked on at once does not change the answer on a CPU."""
    if "chunk" not in {knob.name for knob in knobs(cls)}:
        raise NotApplicable("it has no setting 'chunk'")
    for chunk in (1, 3):
        answer = attack_of(cls, BRIEF, chunk=chunk)(problem())
        same = rows_equal(answer, short_answer_of(cls), torch.arange(10))
        expect(same, f"chunk={chunk} gives another answer.")


def a_lost_target_harms_no_other(cls: type[Attack]) -> None:
    """A row with NaN is marked as diverged, and answers to others stay as they are."""
    first = problem().target_rows()[0][:5]

    def spoil(reps: Tensor) -> Tensor:
        reps = reps.clone()
        if torch.equal(reps, first):
            reps[2, 7] = torch.nan
        return reps

    good, bad = short_answer_of(cls), attack_of(cls, BRIEF)(problem(spoil))
    lost = torch.arange(10) == 2
    expect(torch.equal(bad.diverged, lost), "Another target than the one with NaN is marked.")
    others = (~lost).nonzero().squeeze(1)
    same = torch.equal(bad.images[others], good.images[others])
    expect(same and torch.equal(bad.fit[others], good.fit[others]), "NaN harms other targets.")
    expect(not bool(bad.fit[2].isfinite()), "A target with NaN has a fit.")


CHECKS: tuple[Callable[[type[Attack]], None], ...] = (
    finds_images_that_nothing_hides,
    finds_nothing_in_other_uploads,
    its_answers_explain_the_uploads,
    uploads_of_others_are_not_explained,
    shapes_and_ranges,
    other_kinds_are_read_as_well,
    the_order_of_uploads_changes_nothing,
    a_start_is_a_targets_own,
    the_chunk_changes_nothing,
    a_lost_target_harms_no_other,
)
