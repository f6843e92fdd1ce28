"""Membership inference on Gaussian representations whose members are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.attacks.mixtures.class_statistics import class_statistics, log_likelihoods
from fedre_privacy.core.artifacts import (
    ClassLogits,
    Counts,
    EntangledRep,
    HeadState,
    Prototypes,
    Representations,
)
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Candidates, Knowledge, Observation, Upload
from fedre_privacy.entanglement.base import Draw, schemes
from fedre_privacy.threats.base import threats

CLASSES, SIDE = 3, 10
"""Images of 10x10 values seen as they are: d = 100."""


def images(count: int, label: int, seed: int) -> Tensor:
    """Gaussian images around the centre of their class."""
    centre = 0.5 + 0.2 * torch.randn(1, SIDE, SIDE, generator=stream(9, "centre", index=label))
    return centre + 0.1 * torch.randn(count, 1, SIDE, SIDE, generator=stream(seed, "images"))


class World:
    """One client with `size` samples of classes 0 and 1; as many others are candidates too."""

    def __init__(self, size: int, asked: int = 100, seed: int = 0) -> None:
        self.own = torch.cat([images(size, label, seed + label) for label in (0, 1)])
        self.labels = torch.tensor([0, 1]).repeat_interleave(size)
        others = torch.cat([images(asked, label, seed + 100 + label) for label in (0, 1)])
        some = [torch.arange(size)[:asked] + label * size for label in (0, 1)]
        kept = torch.cat(some)
        self.asked = torch.cat([self.own[kept], others])
        self.asked_labels = torch.cat(
            [self.labels[kept], torch.tensor([0, 1]).repeat_interleave(asked)]
        )
        self.member = torch.arange(len(self.asked)) < len(kept)
        self.aux = torch.cat([images(300, label, seed + 200 + label) for label in range(CLASSES)])
        self.aux_labels = torch.arange(CLASSES).repeat_interleave(300)

    def means(self, reps: Tensor) -> Prototypes:
        rows = torch.stack([reps[self.labels == label].mean(0) for label in (0, 1)])
        return Prototypes(rows, torch.tensor([0, 1]))

    def observe(self, *uploads: Upload, nets=None, threat: str = "strong") -> Observation:
        last = max(upload.round for upload in uploads)
        rounds = {upload.round for upload in uploads}
        granted = Knowledge.AUX_DATA in threats.get(threat).grants
        return Observation(
            threat=threats.get(threat),
            targets=tuple(u for u in uploads if u.round == last),
            uploads=uploads,
            broadcasts=(),
            extractors=nets or {(0, t): nn.Flatten() for t in rounds},
            image_shape=(1, SIDE, SIDE),
            num_classes=CLASSES,
            aux=self.aux if granted else None,
            aux_labels=self.aux_labels if granted else None,
            candidates=Candidates(
                self.asked, self.asked_labels, torch.zeros(len(self.asked), dtype=torch.int64)
            ),
        )

    def auc(self, found: MembershipScores) -> float:
        """Area under the curve, averaged over the classes held."""
        both = [
            roc_auc_score(self.member[here], found.scores[here])
            for here in (self.asked_labels == 0, self.asked_labels == 1)
        ]
        return sum(both) / 2


def attack(observation: Observation, **settings) -> MembershipScores:
    return attacks.get("membership")(**settings)(observation)


SCORES = ("tracing", "likelihood-ratio")


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("size", "low", "high"), [(1, 1, 1), (10, 0.95, 1), (50, 0.75, 0.92)])
def test_means_of_few_betray_their_members(score, size, low, high):
    world = World(size)
    found = attack(world.observe(Upload(0, 1, (world.means(world.own.flatten(1)),))), score=score)
    assert low <= world.auc(found) <= high


@pytest.mark.parametrize("score", SCORES)
def test_means_of_many_hardly_do(score):
    world = World(2000, asked=500)
    found = attack(world.observe(Upload(0, 1, (world.means(world.own.flatten(1)),))), score=score)
    assert 0.5 < world.auc(found) < 0.62


@pytest.mark.parametrize("score", SCORES)
def test_noise_for_an_upload_tells_nothing(score):
    world = World(10)
    areas = []
    for seed in range(8):
        noise = 0.5 + 0.1 * torch.randn(2, SIDE * SIDE, generator=stream(seed, "noise"))
        upload = Upload(0, 1, (Prototypes(noise, torch.tensor([0, 1])),))
        areas.append(world.auc(attack(world.observe(upload), score=score)))
    assert 0.4 < sum(areas) / len(areas) < 0.6


@pytest.mark.parametrize("score", SCORES)
def test_another_clients_upload_tells_nothing(score):
    world, other = World(10), World(10, seed=50)
    upload = Upload(0, 1, (other.means(other.own.flatten(1)),))
    assert 0.35 < world.auc(attack(world.observe(upload), score=score)) < 0.65


# --- kinds of uploads ----------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
def test_single_representations_are_found_exactly(score):
    world = World(30, asked=30)
    upload = Upload(0, 1, (Representations(world.own.flatten(1), world.labels),))
    assert world.auc(attack(world.observe(upload), score=score)) == 1


def outputs_of_rounds(world: World, own: Tensor, count: int, shares: bool) -> Observation:
    """Mean outputs of classes in several rounds, each of another head."""
    heads = {}
    uploads = []
    for t in range(1, count + 1):
        head = nn.Linear(SIDE * SIDE, CLASSES)
        nn.init.normal_(head.weight, std=0.3, generator=stream(t, "head"))
        heads[0, t] = head.requires_grad_(False)
        rows = head(own.flatten(1))
        rows = rows.softmax(1) if shares else rows
        table = world.means(rows)
        uploads.append(Upload(0, t, (ClassLogits(table.means, table.labels),)))
    return replace(world.observe(*uploads), heads=heads)


@pytest.mark.parametrize("shares", [True, False])
def test_mean_outputs_of_several_rounds_betray_their_members(shares):
    world = World(6, asked=60)
    one = world.auc(attack(outputs_of_rounds(world, world.own, 1, shares)))
    many = world.auc(attack(outputs_of_rounds(world, world.own, 12, shares)))
    assert many > 0.8 and many > one
    other = World(6, asked=60, seed=50)
    assert 0.3 < world.auc(attack(outputs_of_rounds(world, other.own, 12, shares))) < 0.7


def test_mean_outputs_need_the_heads():
    world = World(6)
    bare = replace(outputs_of_rounds(world, world.own, 2, True), heads={})
    with pytest.raises(IncompatibleError, match="was given for any round"):
        attack(bare)
    strong = threats.get("strong")
    blind = replace(strong, grants=strong.grants - {Knowledge.HEADS})
    with pytest.raises(IncompatibleError, match="needs HEADS to read ClassLogits"):
        attack(replace(bare, threat=blind))


def entangle(world: World, name: str, round: int, reps: Tensor) -> Upload:
    draw = Draw(
        labels=world.labels,
        num_classes=CLASSES,
        dim=reps.shape[1],
        seed=0,
        secret=0,
        client=0,
        round=round,
    )
    emission = schemes.get(name)()(reps, draw)
    return Upload(0, round, (emission.artifact,))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["rap", "vap", "var", "rar"])
def test_entangled_uploads_betray_members_too(score, name):
    world = World(5)
    upload = entangle(world, name, 1, world.own.flatten(1))
    assert world.auc(attack(world.observe(upload), score=score)) > 0.9


def test_rounds_add_up():
    world = World(60)
    nets, uploads = {}, []
    for round in range(1, 7):
        linear = nn.Linear(SIDE * SIDE, 40, bias=False)
        with torch.no_grad():
            linear.weight.copy_(torch.randn(40, 100, generator=stream(round, "net")) / 10)
        nets[0, round] = nn.Sequential(nn.Flatten(), linear)
        with torch.no_grad():
            uploads.append(entangle(world, "rap", round, nets[0, round](world.own)))
    whole = world.observe(*uploads, nets=nets)
    all_rounds, last = world.auc(attack(whole)), world.auc(attack(whole, rounds=1))
    assert all_rounds > last + 0.03
    without = replace(whole, extractors={(0, 6): nets[0, 6]})
    assert torch.equal(attack(without).scores, attack(whole, rounds=1).scores)
    assert "1 rounds used" in attack(without).notes[0]


def prototypes_of_rounds(world: World, noise: float = 0.0, missing: int = 0) -> Observation:
    """Prototypes of six rounds, of extractors that drift; class 1 is not in some round."""
    nets, uploads = {}, []
    kept = torch.randn(60, 100, generator=stream(0, "kept"))
    for round in range(1, 7):
        linear = nn.Linear(SIDE * SIDE, 60, bias=False)
        drift = torch.randn(60, 100, generator=stream(round, "drift"))
        with torch.no_grad():
            linear.weight.copy_((kept + 0.5 * drift) / 10)
            nets[0, round] = nn.Sequential(nn.Flatten(), linear)
            sent = world.means(nets[0, round](world.own))
        count = 1 if round == missing else 2
        means = sent.means + noise * torch.randn(2, 60, generator=stream(round, "noise"))
        uploads.append(Upload(0, round, (Prototypes(means[:count], sent.labels[:count]),)))
    return world.observe(*uploads, nets=nets)


def test_prototypes_of_several_rounds_are_told_together():
    gains = []
    for seed in (0, 7, 20, 31):
        world = World(20, seed=seed)
        for noise in (0.0, 0.05):
            seen = prototypes_of_rounds(world, noise)
            joint, summed, last = (
                world.auc(attack(seen, **given))
                for given in ({}, {"rounds_together": False}, {"rounds": 1})
            )
            assert joint > last + 0.01 and joint > summed - 0.01
            gains.append(joint - summed)
    assert sum(gains) / len(gains) > 0.01


def test_a_prototype_that_a_round_lacks_is_told_by_the_others():
    world = World(20)
    found = attack(prototypes_of_rounds(world, missing=3))
    assert bool(found.scores.isfinite().all()) and world.auc(found) > 0.85


def test_prototypes_of_others_over_rounds_tell_nothing():
    world, other = World(20), World(20, seed=50)
    theirs = prototypes_of_rounds(other)
    asked = prototypes_of_rounds(world).candidates
    assert 0.35 < world.auc(attack(replace(theirs, candidates=asked))) < 0.65


def test_recovered_prototypes_are_read_and_lost_ones_skipped():
    world = World(8)
    rows = world.means(world.own.flatten(1)).means.clone()
    rows[1] = torch.nan
    target = Upload(0, 1, (Prototypes(rows, torch.tensor([0, 1])),))
    sent = entangle(world, "rap", 1, world.own.flatten(1))
    observation = replace(world.observe(sent), targets=(target,))
    found = attack(observation)
    known = world.asked_labels == 0
    assert roc_auc_score(world.member[known], found.scores[known]) > 0.95
    assert bool((found.scores[~known] == found.scores.min()).all())
    assert "classes [1]" in found.notes[0]


# --- what is known beside ------------------------------------------------------------------------


def test_counts_sharpen_the_ratio_and_settings_override_them():
    world = World(3)
    upload = Upload(0, 1, (world.means(world.own.flatten(1)),))
    counts = Upload(0, 0, (Counts(torch.tensor([3, 3, 0])),))
    plain = attack(world.observe(upload))
    told = attack(world.observe(counts, upload, nets={(0, 1): nn.Flatten()}))
    assert torch.equal(told.scores, attack(world.observe(upload), samples_per_class=3).scores)
    assert not torch.equal(told.scores, plain.scores)
    assert world.auc(plain) > 0.99 and world.auc(told) > 0.99
    assert float(told.scores[world.member].min()) > 0  # log-odds on the right side
    assert float(told.scores[~world.member].max()) < 0


def test_a_class_that_is_not_in_the_upload_gets_the_lowest_score():
    world = World(10)
    observation = world.observe(Upload(0, 1, (world.means(world.own.flatten(1)),)))
    asked = observation.candidates
    odd = Candidates(
        torch.cat([asked.images, images(4, 2, 77)]),
        torch.cat([asked.labels, torch.full((4,), 2)]),
        torch.cat([asked.clients, torch.zeros(4, dtype=torch.int64)]),
    )
    found = attack(replace(observation, candidates=odd))
    assert bool((found.scores[-4:] == found.scores.min()).all()) and found.scores.isfinite().all()
    assert "classes [2] are not in its uploads" in found.notes[0]


def two_clients(size: int = 10) -> tuple[Observation, Tensor]:
    """The same question about two clients with data of their own."""
    worlds = [World(size, asked=40, seed=seed) for seed in (0, 50)]
    uploads = [Upload(k, 1, (w.means(w.own.flatten(1)),)) for k, w in enumerate(worlds)]
    asked = Candidates(
        torch.cat([w.asked for w in worlds]),
        torch.cat([w.asked_labels for w in worlds]),
        torch.arange(2).repeat_interleave(len(worlds[0].asked)),
    )
    observation = replace(
        worlds[0].observe(uploads[0], threat="fedre-paper"),
        targets=tuple(uploads),
        uploads=tuple(uploads),
        extractors={(0, 1): nn.Flatten(), (1, 1): nn.Flatten()},
        candidates=asked,
    )
    return observation, torch.cat([w.member for w in worlds])


def test_without_auxiliary_data_other_clients_candidates_do():
    observation, member = two_clients()
    found = attack(observation)
    assert all("candidates of other clients" in note for note in found.notes)
    for k in (0, 1):
        mine = observation.candidates.clients == k
        assert roc_auc_score(member[mine], found.scores[mine]) > 0.8


def test_joint_statistics_are_named_a_stronger_game():
    observation, member = two_clients()
    found = attack(observation, reference="joint")
    assert all("stronger trial" in note for note in found.notes)
    assert roc_auc_score(member, found.scores) > 0.8
    alone = replace(
        observation,
        candidates=Candidates(
            *(t[observation.candidates.clients == 0] for t in (
                observation.candidates.images,
                observation.candidates.labels,
                observation.candidates.clients,
            ))
        ),
    )  # fmt: skip
    assert "stronger trial" in attack(alone).notes[0]  # nobody else's are there


def test_images_asked_about_twice_are_no_reference_for_themselves():
    observation, _ = two_clients()
    asked = observation.candidates
    doubled = Candidates(
        torch.cat([asked.images, asked.images[:5]]),
        torch.cat([asked.labels, asked.labels[:5]]),
        torch.cat([asked.clients, torch.ones(5, dtype=torch.int64)]),
    )
    mine = asked.clients == 0
    plain = attack(observation).scores[mine]
    again = attack(replace(observation, candidates=doubled)).scores[: len(mine)][mine]
    assert torch.allclose(plain, again, rtol=1e-3, atol=1e-3)


def test_the_order_of_clients_changes_nothing():
    observation, _ = two_clients()
    turned = replace(observation, targets=observation.targets[::-1])
    assert torch.equal(attack(turned).scores, attack(observation).scores)


def test_candidates_of_unattacked_clients_are_nan():
    observation, _ = two_clients()
    found = attack(replace(observation, targets=observation.targets[:1]))
    assert torch.equal(found.scores.isnan(), observation.candidates.clients == 1)
    assert "clients [1]" in found.notes[-1]


def test_an_extractor_in_training_is_left_as_it_was():
    world = World(5)
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(SIDE * SIDE), nn.Dropout(0.5)).train()
    before = net[1].running_mean.clone()
    upload = Upload(0, 1, (world.means(world.own.flatten(1)),))
    observation = world.observe(upload, nets={(0, 1): net})
    first, second = (attacks.get("membership")()(observation, Context(seed=3)) for _ in range(2))
    assert torch.equal(first.scores, second.scores)
    assert net.training and torch.equal(net[1].running_mean, before)
    assert all(p.requires_grad for p in net.parameters())


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", ["eavesdropper", "realistic"])
def test_missing_knowledge_is_refused(threat):
    world = World(5)
    upload = Upload(0, 1, (world.means(world.own.flatten(1)),))
    with pytest.raises(IncompatibleError, match="needs EXTRACTOR"):
        attack(world.observe(upload, threat=threat))


def test_what_is_absent_is_named():
    world = World(5)
    upload = Upload(0, 1, (world.means(world.own.flatten(1)),))
    observation = world.observe(upload)
    with pytest.raises(IncompatibleError, match="given no candidates"):
        attack(replace(observation, candidates=None))
    with pytest.raises(IncompatibleError, match="No extractor of client 0"):
        attack(replace(observation, extractors={(1, 1): nn.Flatten()}))
    with pytest.raises(IncompatibleError, match="needs AUX_DATA"):
        attack(world.observe(upload, threat="fedre-paper"), reference="aux")
    head = Upload(0, 1, (HeadState({"bias": torch.ones(CLASSES)}),))
    with pytest.raises(IncompatibleError, match="the targets are HeadState"):
        attack(replace(observation, targets=(head,)))


# --- the arithmetic -------------------------------------------------------------------------------


def test_the_ratio_is_that_of_two_gaussians():
    rng = stream(0, "ratio")
    shift, x = torch.randn(4, generator=rng).double(), torch.randn(6, 4, generator=rng).double()
    a, s = torch.tensor([[0.2]]).double(), torch.tensor([[0.3]]).double()
    member, other = log_likelihoods(shift, x, a, s)

    def density(mean: Tensor, variance: float) -> Tensor:
        covariance = variance * torch.eye(4).double()
        return torch.distributions.MultivariateNormal(mean, covariance).log_prob(shift)

    expected = density(0.2 * x, 0.3 - 0.04) - density(torch.zeros(4).double(), 0.3)
    assert torch.allclose((member - other)[0], expected)


@pytest.mark.parametrize(("size", "value"), [(2, 0.9431), (5, 0.5669), (20, 0.4197)])
def test_a_prototype_has_its_known_ratio(size, value):
    shift, candidate = torch.tensor([0.5, 0.0]).double(), torch.tensor([[1.0, 0.0]]).double()
    share = torch.tensor([[1 / size]]).double()
    member, other = log_likelihoods(shift, candidate, share, share)
    assert float(member - other) == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize(("size", "area"), [(5, 0.997), (10, 0.969), (20, 0.901), (50, 0.793)])
def test_means_of_known_normals_are_told_as_often_as_is_known(size, area):
    rng, draws, dim = stream(size, "means"), 4000, 64
    others = torch.randn(draws, dim, generator=rng).double()
    x = torch.randn(draws, dim, generator=rng).double()
    members = torch.rand(draws, generator=rng) < 0.5
    rest = others / size * torch.where(members, size - 1, size).double().sqrt()[:, None]
    shift = rest + members[:, None] * x / size
    share = torch.tensor([[1 / size]]).double()
    member, other = log_likelihoods(shift, x, share, share)
    found = roc_auc_score(members.numpy(), (member - other)[0].numpy())
    assert found == pytest.approx(area, abs=0.015)


def test_whitening_undoes_the_spread_within_classes():
    rng = stream(0, "white")
    labels = torch.arange(2).repeat(4000)
    factor = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    reps = torch.randn(8000, 3, generator=rng) @ factor + 5 * labels[:, None]
    found = class_statistics(reps, labels, 3)
    white = found.white(reps, found.means[labels])
    spread = white.T @ white / len(white)
    assert float((spread - torch.diag(spread.diagonal())).abs().max()) < 0.05
    assert bool((spread.diagonal() > 0.6).all()) and bool((spread.diagonal() <= 1.01).all())
    assert torch.allclose(found.means[2], reps.double().mean(0))  # absent: the mean of all


def test_one_mixed_class_is_a_prototype():
    world = World(10)
    row = world.means(world.own.flatten(1)).means[0]
    first = attack(world.observe(Upload(0, 1, (Prototypes(row[None], torch.tensor([0])),))))
    hot = torch.eye(CLASSES)[0]
    second = attack(world.observe(Upload(0, 1, (EntangledRep(row, hot),))))
    assert torch.allclose(first.scores, second.scores, rtol=1e-4, atol=1e-4)
