"""What every attack that reads representations promises; a new one is tested by being registered.

The known problem: digits seen through a random rotation, which loses nothing, so that an attack
which does its work finds them. A new attack with slow defaults adds its quick settings here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Attack, Context, attacks
from fedre_privacy.core.artifacts import EntangledRep, HeadState, Prototypes, Representations
from fedre_privacy.core.config import build_plugin, knobs
from fedre_privacy.core.errors import DivergedError, IncompatibleError
from fedre_privacy.core.events import Event
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import (
    Knowledge,
    LocalTraining,
    Mixture,
    Observation,
    Truth,
    Upload,
)
from fedre_privacy.eval import PublicImages, Scores
from fedre_privacy.eval.metrics.psnr import Psnr
from fedre_privacy.eval.verdict import LEAKS, NOT_EXPLAINED
from fedre_privacy.play.agreement import agreement
from fedre_privacy.play.questions.images import TARGET, ImageTrial
from fedre_privacy.play.targets import TargetGroup
from fedre_privacy.runs.settings import AttackSettings, Evaluation
from fedre_privacy.threats.base import threats

QUICK: dict[str, dict[str, Any]] = {
    "dip": {"steps": 60, "tv": 1.0},
    "pixel": {"steps": 200, "tv": 1.0},
    "joint-disentangle": {"steps": 60, "tv": 1.0},
    "decoder": {"updates": 20, "width": 4},
    "diffusion": {"updates": 20, "width": 4, "layers": 2, "steps": 8, "samples": 2},
    "ensemble-kalman": {"members": 100, "steps": 3},
}
BRIEF: dict[str, dict[str, Any]] = {
    "dip": {"steps": 4, "channels": (4, 4), "depth": 4},
    "pixel": {"steps": 6},
    "joint-disentangle": {"steps": 4, "channels": (4, 4)},
    "linear": {"views": 1, "match_targets": False},
    "shadow": {"views": 1, "shadows": 2},
    "decoder": {"updates": 4, "width": 4, "views": 1, "match_targets": False},
    "diffusion": {"updates": 2, "width": 4, "layers": 2, "views": 1, "steps": 3, "samples": 2},
    "ensemble-kalman": {"views": 1, "members": 20, "steps": 2},
}
"""Settings for promises that hold however short the attack is."""
SEEDLESS = {"linear", "decoder", "shadow"}
"""Exact on the known problem by closed form, whatever the seed."""
JOINT = {"decoder", "diffusion"}
"""A network is trained first: not all pieces are tiles; tested for themselves."""
MARGIN_DB = 4.0
NAMES = [
    name
    for name in attacks.names()
    if issubclass(Representations, attacks.get(name).consumes)
    and attacks.get(name).answers == "images"
]
OWNERS = ((1, 3), (4, 3))


def make(name: str, table: dict[str, dict[str, Any]] = BRIEF, **settings: Any) -> Attack:
    return attacks.get(name)(**{**table.get(name, {}), **settings})


def psnr_db(images: Tensor, truth: Tensor) -> float:
    """PSNR of each pair, averaged over pairs (dB)."""
    mse = (images - truth).square().flatten(1).mean(1)
    return float((-10 * mse.clamp(min=1e-12).log10()).mean())


@pytest.fixture
def problem(observe, rotation, originals, digits):
    """Ten digits of two clients, five each, so that a CPU tile of eight spans both."""
    extractors = {owner: rotation(seed) for seed, owner in enumerate(OWNERS)}
    reps = [net(part) for net, part in zip(extractors.values(), originals.split(5), strict=True)]
    return with_aux(observe(reps, extractors, threat="strong"), digits)


class Whole(nn.Module):
    """A model of which only the extractor is used."""

    def __init__(self, extractor: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor


class Still:
    """The rehearsal of clients that do not train at all."""

    def blank(self, client, seed):
        raise AssertionError("the start is known")

    def __call__(self, client, model, images, labels, rounds, seed):
        assert len(images) == len(labels) == 5
        return {round: model for round in rounds}


def with_aux(seen: Observation, digits) -> Observation:
    """Give an attacker the digits that are not sought, and clients that never leave their start."""
    clients = {client: net for (client, _), net in seen.extractors.items()}
    return replace(
        seen,
        threat=replace(seen.threat, grants=frozenset(Knowledge)),
        aux=digits.images[10:].float() / 255,
        aux_labels=digits.labels[10:],
        training=LocalTraining(0.1, 1, 5, dict.fromkeys(clients, 5)),
        initial={(client, 0): Whole(net) for client, net in clients.items()},
        rehearse=Still(),
    )


def with_targets(problem: Observation, change) -> Observation:
    """The same problem with other target rows."""
    targets = tuple(
        Upload(u.client, u.round, (replace(u.artifacts[0], reps=change(u.artifacts[0].reps)),))
        for u in problem.targets
    )
    return replace(problem, targets=targets)


def assert_same(one: Reconstruction, other: Reconstruction) -> None:
    for name, tensor in one.save()[0].items():
        assert torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(other.save()[0][name])), name
    assert one.stopped_because == other.stopped_because


def test_every_listed_name_exists():
    assert set(QUICK) <= set(NAMES) and set(BRIEF) <= set(NAMES) and {"dip", "pixel"} <= set(NAMES)


# --- better than trivial, and only because of the upload -----------------------------------------


@pytest.fixture
def floor(digits, originals) -> float:
    """What one picture given for every target scores: the best of all constants and the mean."""
    rest = digits.images[10:].float() / 255
    guesses = [torch.tensor(level / 100) for level in range(101)]
    guesses += [rest.mean(0), rest.mean(), originals.mean(0)]
    return max(psnr_db(guess.expand_as(originals), originals) for guess in guesses)


@pytest.mark.parametrize("name", NAMES)
def test_an_attack_beats_every_trivial_answer(name, problem, originals, floor):
    found = make(name, QUICK)(problem)
    assert psnr_db(found.images, originals) > floor + MARGIN_DB
    # target by target, and not because of a mix-up that happens to average well
    errors = (found.images.unsqueeze(1) - originals.unsqueeze(0)).square().flatten(2).mean(2)
    assert errors.argmin(1).tolist() == list(range(10))
    assert psnr_db(found.prior, originals) < floor


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_noise_for_an_upload_tells_nothing(name, problem, originals, floor):
    def noise(reps: Tensor) -> Tensor:
        return reps.std() * torch.randn(reps.shape, generator=stream(0, "noise"))

    found = make(name, QUICK)(with_targets(problem, noise))
    assert psnr_db(found.images, originals) < floor + 0.5


@pytest.mark.parametrize("name", NAMES)
def test_another_upload_tells_nothing(name, problem, originals, floor):
    found = make(name, QUICK)(with_targets(problem, lambda reps: reps.roll(1, 0)))
    assert psnr_db(found.images, originals) < floor + 0.5


# --- how much of the upload its answers explain --------------------------------------------------


def judged(attack: Attack, seen: Observation, originals: Tensor, digits) -> Scores:
    """The card of an attack on representations, each digit a unit of its own."""
    count, number = len(originals), torch.arange(len(originals))
    owners = torch.tensor([client for client, _ in seen.target_rows()[1]])
    pairs = Mixture(number, number, torch.ones(count), count)
    truth = Truth(originals, number, owners, pairs, number, number)
    group = TargetGroup("representations", False, seen.targets, truth)
    public = PublicImages(digits.images[10:].float() / 255, digits.labels[10:].long())
    metrics = {"psnr": Psnr()}
    settings = AttackSettings("representations", attack, seen.threat, Evaluation(), metrics)
    trial = ImageTrial(
        None, settings, 0, seen, "representations", False, 3, groups={TARGET: group},
        public=public, unit="representation", agreement=agreement(seen, group, public.images),
    )  # fmt: skip
    card: Scores = trial.score(attack(seen))
    return card


@pytest.mark.parametrize("name", NAMES)
def test_answers_explain_more_of_their_uploads_than_floors_do(name, problem, originals, digits):
    card = judged(make(name, QUICK), problem, originals, digits)
    share = card.get("explained")
    assert share.over_interval[0] > 0 and 0 <= share.floor < share.value <= 1
    assert card.verdict.word == LEAKS and not card.notes


@pytest.mark.parametrize("name", NAMES)
def test_another_upload_is_not_explained_by_what_is_asked_for(name, problem, originals, digits):
    seen = with_targets(problem, lambda reps: reps.roll(1, 0))
    card = judged(make(name), seen, originals, digits)
    assert card.verdict.word == NOT_EXPLAINED
    assert "order of rows" in card.verdict.because and card.notes


# --- what comes back -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_ranges(name, problem):
    attack = make(name)
    found = attack(problem)
    assert found.images.shape == found.prior.shape == (10, *problem.image_shape)
    for images in (found.images, found.prior):
        assert images.dtype == torch.float32 and not images.requires_grad
        assert float(images.min()) >= 0 and float(images.max()) <= 1
    assert found.fit.shape == (10,) and bool((found.fit >= 0).all())
    assert found.trace.shape == (len(found.trace_steps), 10)
    assert bool((found.trace_steps.diff() > 0).all())
    assert found.diverged.tolist() == [False] * 10
    assert found.stopped_because


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [Prototypes, EntangledRep])
def test_mixed_targets_are_read_too(name, kind, problem, observe, digits):
    if not issubclass(kind, attacks.get(name).consumes):
        pytest.skip(f"{name} does not read {kind.__name__}")
    rows = [u.artifacts[0].reps[:1] for u in problem.targets]
    made = [
        Prototypes(r, torch.tensor([1]))
        if kind is Prototypes
        else EntangledRep(r[0], torch.ones(10) / 10)
        for r in rows
    ]
    seen = observe([], problem.extractors, artifacts=made, threat="strong")
    found = make(name)(with_aux(seen, digits))
    plain = make(name)(with_aux(observe(rows, problem.extractors, threat="strong"), digits))
    unsure = torch.zeros(0)  # how many images made a target is another question
    assert_same(replace(found, confidence=unsure), replace(plain, confidence=unsure))


# --- same question, same answer ----------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bytes(name, problem):
    attack = make(name)
    first = attack(problem, Context(seed=5))
    torch.rand(3)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    assert_same(attack(problem, Context(seed=5)), first)
    assert torch.equal(torch.random.get_rng_state(), before)  # no global randomness
    assert torch.get_num_threads() == threads
    if name not in SEEDLESS:
        assert not torch.equal(attack(problem, Context(seed=6)).images, first.images)


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_threads_changes_nothing(name, problem):
    attack, threads = make(name), torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            results.append(attack(problem))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


@pytest.mark.parametrize("name", NAMES)
def test_the_chunk_changes_nothing(name, problem):
    if "chunk" not in {knob.name for knob in knobs(attacks.get(name))}:
        pytest.skip(f"{name} has no chunk")
    first = make(name, chunk=1)(problem)
    assert_same(make(name, chunk=3)(problem), first)
    assert_same(make(name, chunk=64)(problem), first)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_the_chunk_changes_next_to_nothing_on_a_gpu(name, problem):
    settings = {knob.name for knob in knobs(attacks.get(name))}
    if "chunk" not in settings:
        pytest.skip(f"{name} has no chunk")
    # Tiles of another size may take other kernels: last digits differ, and grow with the steps.
    context = Context(device=torch.device("cuda"))
    exact = {"precision": "float32"} if "precision" in settings else {}
    first, second = (make(name, chunk=chunk, **exact)(problem, context) for chunk in (1, 64))
    assert torch.allclose(first.images, second.images, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_uploads_changes_nothing(name, problem):
    # Targets are ordered by client and round first, so the tiles are the same: bitwise.
    first = make(name)(problem)
    turned = make(name)(replace(problem, targets=problem.targets[::-1]))
    assert torch.equal(turned.images, first.images.roll(5, 0))
    assert torch.equal(turned.fit, first.fit.roll(5, 0))
    assert torch.equal(turned.trace, first.trace.roll(5, 1))


@pytest.mark.parametrize("name", NAMES)
def test_a_start_does_not_depend_on_who_else_is_attacked(name, problem):
    both = make(name)(problem)
    alone = make(name)(replace(problem, targets=problem.targets[1:]))
    assert torch.allclose(alone.prior, both.prior[5:], atol=1e-5)


# --- nothing is left behind --------------------------------------------------------------------


def state(problem: Observation) -> list[Tensor]:
    tensors = [t.clone() for u in problem.targets for t in u.artifacts[0].tensors().values()]
    for module in problem.extractors.values():
        tensors += [t.clone() for t in (*module.parameters(), *module.buffers())]
    return tensors


def modes(problem: Observation) -> list[Any]:
    return [
        (part.training, [p.requires_grad for p in part.parameters()], str(part))
        for module in problem.extractors.values()
        for part in module.modules()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_observation_is_unchanged(name, problem):
    tensors, before = state(problem), modes(problem)
    make(name)(problem)
    assert modes(problem) == before
    for tensor, other in zip(tensors, state(problem), strict=True):
        assert torch.equal(tensor, other)
    assert all(p.grad is None for m in problem.extractors.values() for p in m.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_an_extractor_in_training_is_unchanged(name, problem, observe, originals, digits):
    nets = {}
    for owner in OWNERS:
        nets[owner] = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.LazyLinear(16)
        )
        nets[owner](originals)
        nets[owner].train()
    training = with_aux(observe([torch.ones(2, 16)] * 2, nets, threat="strong"), digits)
    tensors, before = state(training), modes(training)
    make(name)(training)
    assert modes(training) == before
    for tensor, other in zip(tensors, state(training), strict=True):
        assert torch.equal(tensor, other)
    assert all(p.grad is None for m in nets.values() for p in m.parameters())


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("threat", ["eavesdropper", "realistic"])
def test_missing_knowledge_is_refused(name, threat, problem):
    attack = make(name)
    weaker = replace(problem, threat=threats.get(threat))
    lacking = attack.needs - weaker.threat.grants
    if not lacking:
        pytest.skip(f"{name} needs no more than {threat} grants")
    with pytest.raises(IncompatibleError) as caught:
        attack(weaker)
    for knowledge in lacking:
        assert f"needs {knowledge.upper()}" in str(caught.value)
    assert threat in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_an_unreadable_upload_is_refused(name, problem, observe):
    head = HeadState({"weight": torch.ones(10, 256)})
    readable = problem.targets[0].artifacts[0]
    for artifacts in ([head, head], [readable, head]):
        with pytest.raises(IncompatibleError, match="the targets are HeadState"):
            make(name)(observe([], problem.extractors, artifacts=artifacts))
    with pytest.raises(IncompatibleError, match="the targets are nothing"):
        make(name)(replace(problem, targets=()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["steps", "lr", "restarts", "chunk"])
def test_a_budget_of_nothing_is_refused(name, key):
    if key not in {knob.name for knob in knobs(attacks.get(name))}:
        pytest.skip(f"{name} has no {key}")
    problems: list[str] = []
    assert build_plugin(attacks, {"name": name, key: 0}, at="attack", problems=problems) is None
    assert f"'attack.{key}'" in problems[0] and ("> 0" in problems[0] or ">= 1" in problems[0])


@pytest.mark.parametrize("name", NAMES)
def test_declarations(name):
    attack = attacks.get(name)
    assert attack.name == name and attack.consumes and attack.recovers
    assert Knowledge.UPLOADS in attack.needs


# --- divergence ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_diverged_target_is_marked_and_harms_no_other(name, problem):
    def spoil(reps: Tensor) -> Tensor:
        reps = reps.clone()
        if torch.equal(reps, problem.targets[0].artifacts[0].reps):
            reps[2, 7] = torch.nan
        return reps

    good, bad = make(name)(problem), make(name)(with_targets(problem, spoil))
    assert bad.diverged.tolist() == [i == 2 for i in range(10)]
    others = [i for i in range(10) if i != 2]
    assert torch.equal(bad.images[others], good.images[others])
    assert torch.equal(bad.fit[others], good.fit[others])
    assert not bad.fit[2].isfinite()


@pytest.mark.parametrize("name", NAMES)
def test_all_diverged_is_an_error_with_a_next_step(name, problem):
    with pytest.raises(DivergedError, match="all 10 targets") as caught:
        make(name)(with_targets(problem, lambda reps: reps * torch.nan))
    assert caught.value.next_step


# --- resume --------------------------------------------------------------------------------------


class Box:
    """A cache in memory that remembers what was asked of it."""

    def __init__(self, kept: dict[str, dict[str, Tensor]] | None = None) -> None:
        self.kept = dict(kept or {})
        self.saved: list[str] = []

    def load(self, name: str) -> dict[str, Tensor] | None:
        return self.kept.get(name)

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        self.saved.append(name)
        self.kept[name] = tensors


@pytest.mark.parametrize("name", sorted(set(NAMES) - JOINT))
def test_a_killed_attack_goes_on_where_it_was(name, problem):
    box = Box()
    whole = make(name)(problem, Context(cache=box))
    assert_same(whole, make(name)(problem))
    first = min(box.saved)
    assert len(set(box.saved)) == len(box.saved) > 1

    worked_on = set()
    half = Box({first: box.kept[first]})
    resumed = make(name)(
        problem, Context(cache=half, report=lambda event: worked_on.add(event.data.get("first")))
    )
    assert_same(resumed, whole)
    assert first not in half.saved and set(half.saved) == set(box.saved) - {first}
    assert 0 not in worked_on and worked_on


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_attack_is_read_back(name, problem):
    box = Box()
    whole = make(name)(problem, Context(cache=box))
    events = []
    again = Box(box.kept)
    assert_same(make(name)(problem, Context(cache=again, report=events.append)), whole)
    assert again.saved == [] and events == []


@pytest.mark.parametrize("name", sorted(set(NAMES) - JOINT))
def test_an_interruption_keeps_finished_tiles(name, problem):
    class Kill(Exception):
        pass

    def report(event: Event) -> None:
        if event.data["first"] > 0:
            raise Kill

    box, threads = Box(), torch.get_num_threads()
    torch.set_num_threads(1)  # one tile after another
    try:
        with pytest.raises(Kill):
            make(name)(problem, Context(report=report, cache=box))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    assert len(box.saved) == 1
    assert_same(make(name)(problem, Context(cache=box)), make(name)(problem))


@pytest.mark.parametrize("name", NAMES)
def test_a_failing_tile_stops_the_others(name, problem):
    class Kill(Exception):
        pass

    def report(event: Event) -> None:
        raise Kill

    box, threads = Box(), torch.get_num_threads()
    with pytest.raises(Kill):
        make(name)(problem, Context(report=report, cache=box))
    assert box.saved == [] and torch.get_num_threads() == threads
