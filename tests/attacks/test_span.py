"""Rows of an update: members' features lie in them, whatever loss made them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.gradients.model_pairs import SentModels, latest
from fedre_privacy.attacks.span import Span, by_rows, features, fill_in, of_tokens, widest
from fedre_privacy.core.artifacts import ModelState
from fedre_privacy.core.channels import Channel, Masking
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Broadcast, Candidates, KnownDefense, Observation, Upload
from fedre_privacy.eval.membership import auc
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.models.adapters import AdapterForm, Bottleneck, LowRank
from fedre_privacy.models.split import parameters_of
from fedre_privacy.runs.resolution import resolve_attack, resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train
from fedre_privacy.threats.base import threats

WIDTH, ROWS, COUNT, CLASSES = 200, 40, 120, 4


def drawn(seed: int, count: int) -> Tensor:
    """Features that are far from isotropic, spreads .98^j, and share a direction."""
    scale = 0.98 ** torch.arange(WIDTH)
    return ((torch.randn(count, WIDTH, generator=stream(seed, "features")) + 0.5) * scale).double()


@pytest.fixture(scope="module")
def case() -> tuple[Tensor, Tensor, Tensor]:
    """Candidates, members, and rows that mix members in ways that nobody knows."""
    own = drawn(0, COUNT)
    members = torch.rand(COUNT, generator=stream(0, "members")) < 0.25
    upstream = torch.randn(ROWS, int(members.sum()), generator=stream(0, "upstream")).double()
    return own, members, upstream @ own[members]


def test_fewer_members_than_rows_are_told_exactly(case):
    own, members, change = case
    assert int(members.sum()) < ROWS
    assert auc(by_rows(own, drawn(1, 400), change, 1e-4, 1e-6), members) == 1.0


def test_rows_find_members_where_lengths_of_products_do_not(case):
    own, members, _ = case
    few = torch.randn(12, int(members.sum()), generator=stream(1, "few")).double() @ own[members]
    plain = (own @ few.T).norm(dim=1) / own.norm(dim=1)
    found = auc(by_rows(own, drawn(1, 400), few, 1e-4, 1e-3), members)
    assert found > 0.8 and found > auc(plain, members) + 0.1


def test_noise_and_what_others_made_are_at_chance(case):
    own, members, change = case
    found = []
    for seed in range(10):
        noise = torch.randn(ROWS, WIDTH, generator=stream(seed, "nothing")).double()
        other = torch.randn(ROWS, 30, generator=stream(seed, "mix")).double() @ drawn(50 + seed, 30)
        for rows in (noise, other):
            found.append(auc(by_rows(own, drawn(1, 400), rows, 1e-4, 1e-3), members))
    assert sum(found) / len(found) == pytest.approx(0.5, abs=0.04)
    noisy = change + change.std() * 30 * torch.randn(ROWS, WIDTH, generator=stream(3, "loud"))
    assert auc(by_rows(own, drawn(1, 400), noisy, 1e-4, 1e-3), members) < 0.65


def test_masked_rows_become_what_is_expected_of_the_rest(case):
    _, _, change = case
    known = drawn(1, 400)
    kept = torch.rand(change.shape, generator=stream(0, "kept")) < 0.2
    found = fill_in(1e-3 * change * kept, known, 1e-2)
    moment = known.T @ known + 4 * known.square().sum(1).mean() * torch.eye(WIDTH)
    for row, own, made in zip(1e-3 * change, kept, found, strict=True):
        expected = moment[:, own] @ torch.linalg.solve(moment[own][:, own], row[own])
        assert torch.allclose(made, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()))


def test_masked_rows_tell_members_once_they_are_filled_in(case):
    """Features whose values go together, as those of networks do."""
    members = case[1]
    mixed = torch.randn(WIDTH, WIDTH, generator=stream(7, "turn")).double()
    turn = torch.linalg.qr(mixed)[0]
    own, known = case[0] @ turn, drawn(1, 400) @ turn
    found = {True: [], False: []}
    for seed in range(4):
        upstream = torch.randn(ROWS, int(members.sum()), generator=stream(seed, "upstream"))
        kept = torch.rand(ROWS, WIDTH, generator=stream(seed, "kept")) < 0.2
        sent = (upstream.double() @ own[members]) * kept
        for filled in found:
            rows = fill_in(sent, known, 1e-4) if filled else sent
            found[filled].append(auc(by_rows(own, known, rows, 1e-4, 1e-3), members))
    as_sent, filled = (sum(found[one]) / 4 for one in (False, True))
    assert filled > 0.9 and filled > as_sent + 0.2


@pytest.mark.parametrize("seed", range(3))
def test_masked_noise_is_at_chance(case, seed):
    own, members, _ = case
    noise = torch.randn(ROWS, WIDTH, generator=stream(seed, "nothing")).double()
    kept = torch.rand(ROWS, WIDTH, generator=stream(seed, "kept")) < 0.2
    known = drawn(1, 400)
    rows = fill_in(noise * kept, known, 1e-4)
    assert abs(auc(by_rows(own, known, rows, 1e-4, 1e-3), members) - 0.5) < 0.15


# --- whole observations --------------------------------------------------------------------------


class Projected(nn.Module):
    """A small model of which a client's loss uses the features alone."""

    def __init__(self) -> None:
        super().__init__()
        self.extractor = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU())
        self.head = nn.Linear(24, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.extractor(images))
        return out


def stepped(model: nn.Module, images: Tensor, seed: int) -> nn.Module:
    """One step on a loss that nobody knows: features against targets that were drawn."""
    own = copy.deepcopy(model)
    sought = torch.randn(len(images), 24, generator=stream(seed, "sought"))
    loss = (own.extractor(images) - sought).square().mean()
    loss.backward()
    with torch.no_grad():
        for value in own.parameters():
            if value.grad is not None:
                value -= 0.5 * value.grad
    return own


def observation(threat: str = "strong", rounds: int = 2) -> tuple[Observation, Tensor]:
    """Two clients that took one step a round on their members from models that were broadcast."""
    rng = stream(0, "observed")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Projected().eval()
    images = torch.rand(120, 1, 8, 8, generator=rng)
    labels = torch.randint(CLASSES, (120,), generator=rng)
    clients, members = torch.arange(120) % 2, torch.rand(120, generator=rng) < 0.5
    uploads, broadcasts = [], []
    for number in range(1, rounds + 1):
        broadcasts.append(Broadcast(number, (0, 1), (ModelState(parameters_of(model)),)))
        own = [stepped(model, images[members & (clients == k)], 10 * number + k) for k in (0, 1)]
        uploads += [
            Upload(k, number, (ModelState(parameters_of(made)),)) for k, made in enumerate(own)
        ]
        last = model
        model = copy.deepcopy(own[0])
    granted = threat == "strong"
    return (
        Observation(
            threat=threats.get(threat),
            targets=tuple(uploads[-2:]),
            uploads=tuple(uploads),
            broadcasts=tuple(broadcasts),
            extractors={},
            image_shape=(1, 8, 8),
            num_classes=CLASSES,
            aux=torch.rand(80, 1, 8, 8, generator=rng) if granted else None,
            aux_labels=torch.zeros(80, dtype=torch.int64) if granted else None,
            candidates=Candidates(images, labels, clients),
            models={(client, rounds): last for client in (0, 1)},
        ),
        members,
    )


def area(seen: Observation, members: Tensor, **settings: int) -> float:
    scores = Span(**settings)(seen).scores
    own = [auc(scores[part], members[part]) for k in (0, 1) if len(part := seen_of(seen, k))]
    return sum(own) / len(own)


def seen_of(seen: Observation, client: int) -> Tensor:
    return (seen.candidates.clients == client).nonzero().squeeze(1)


@pytest.mark.parametrize("threat", ["strong", "realistic"])
def test_a_loss_that_nobody_knows_hides_no_members(threat):
    seen, members = observation(threat)
    assert area(seen, members) > 0.8
    assert Span()(seen).notes[0] == "rounds read: 2"


def test_rounds_add_up():
    seen, members = observation(rounds=4)
    one, four = (area(seen, members, rounds=n) for n in (1, 4))
    assert four > one > 0.65


def test_labels_do_not_matter():
    seen, _ = observation()
    other = replace(seen.candidates, labels=(seen.candidates.labels + 1) % CLASSES)
    assert torch.equal(Span()(seen).scores, Span()(replace(seen, candidates=other)).scores)


def test_pruned_updates_are_filled_in_where_clients_declare_it():
    seen, members = observation(rounds=4)
    uploads = []
    for upload in seen.uploads:
        before = seen.broadcasts[upload.round - 1].artifacts[0].params
        after = upload.artifacts[0].params
        pruned = {}
        for name, value in after.items():
            kept = torch.rand(value.shape, generator=stream(upload.round, name)) < 0.3
            pruned[name] = torch.where(kept, value, before[name])
        uploads.append(replace(upload, artifacts=(ModelState(pruned),)))
    sent = replace(seen, uploads=tuple(uploads), targets=tuple(uploads[-2:]))
    known = KnownDefense("own", {}, Channel(updates=(Masking(),)))
    told, untold = (area(one, members) for one in (replace(sent, defenses=(known,)), sent))
    assert told > untold + 0.02 and told > 0.6


@pytest.mark.parametrize("seed", range(3))
def test_noise_for_updates_is_at_chance(seed):
    seen, members = observation()
    rng = stream(seed, "noise")
    uploads = tuple(
        replace(u, artifacts=(ModelState({
            name: seen.models[u.client, 2].state_dict()[name]
            + torch.randn(value.shape, generator=rng)
            for name, value in u.artifacts[0].params.items()
        }),))
        for u in seen.uploads
    )  # fmt: skip
    noised = replace(seen, uploads=uploads, targets=uploads[-2:])
    assert abs(area(noised, members) - 0.5) < 0.2


def test_the_upload_of_the_other_client_is_at_chance():
    seen, members = observation()
    turned = tuple(replace(u, client=1 - u.client) for u in seen.uploads)
    assert abs(area(replace(seen, uploads=turned, targets=turned[-2:]), members) - 0.5) < 0.15


def test_an_upload_that_changed_nothing_says_nothing():
    seen, _ = observation(rounds=1)
    same = tuple(replace(u, artifacts=seen.broadcasts[0].artifacts) for u in seen.targets)
    found = Span()(replace(seen, targets=same, uploads=same))
    assert torch.equal(found.scores, torch.zeros(120))


def test_who_is_not_attacked_is_not_answered():
    seen, _ = observation()
    found = Span()(replace(seen, targets=seen.targets[:1]))
    assert found.scores.isnan().equal(seen.candidates.clients == 1)
    assert "clients [1]" in found.notes[1]


def test_whitening_without_strangers_is_refused():
    seen, _ = observation("realistic")
    mine = seen_of(seen, 0)
    asked = seen.candidates
    alone = Candidates(asked.images[mine], asked.labels[mine], asked.clients[mine])
    with pytest.raises(IncompatibleError, match="there are none"):
        Span()(replace(seen, targets=seen.targets[:1], candidates=alone))


def test_a_model_without_a_linear_layer_is_refused():
    with pytest.raises(IncompatibleError, match=r"the model has none"):
        widest(unmoved(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())), torch.rand(2, 1, 8, 8))


def unmoved(model: nn.Module) -> SentModels:
    return SentModels(model, copy.deepcopy(model), True)


def test_the_widest_layer_and_its_features():
    model, images = Projected(), torch.rand(3, 1, 8, 8)
    exchange = unmoved(model)
    assert widest(exchange, images) == "extractor.1"
    with torch.no_grad():
        exchange.after.head.weight.add_(1)  # a head alone was sent
    assert widest(exchange, images) == "head"
    seen = features(model, "extractor.1", images, torch.device("cpu"))
    assert torch.equal(seen[:, :-1], images.flatten(1).double()) and bool((seen[:, -1] == 1).all())


# --- recorded runs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Tiny runs of three rounds, each trained once."""
    tiny: dict[str, Any] = {
        "data": {"name": "digits", "size": 16, "per_class": 12},
        "partition": {"name": "pra", "alpha": 0.5},
        "model": {"name": "cnn4", "dim": 16},
        "train": {"clients": 3, "rounds": 3, "batch_size": 8},
        "record": {"keep_every": 1},
    }
    more = {"fedmrl": {"small": {"dim": 8}}, "fml": {"small": {"dim": 8}}}
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def run(protocol: str) -> Run:
        settings = {**tiny, "protocol": {"name": protocol, **more.get(protocol, {})}}
        return train(resolve_training(settings, {}, []), runs=folder)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "protocol", ["fedavg", "fedsgd", "fedkd", "fedmrl", "fml", "lg-fedavg", "fedgen"]
)
def test_recorded_runs_are_read_over_all_rounds(trained, protocol):
    settings = resolve_attack(
        {"attack": "span", "target": "membership", "threat": "strong"}, {}, []
    )
    trial = prepare_attack(trained(protocol), settings)
    found = Span()(trial.observation)
    assert bool(found.scores.isfinite().all()) and found.notes[0] == "rounds read: 3"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["fedavg", "fedkd"])
def test_models_of_earlier_rounds_are_those_that_clients_received(trained, protocol):
    run = trained(protocol)

    def seen(round: int) -> Observation:
        asked = {"attack": "span", "target": "membership", "threat": "strong"}
        asked |= {"eval": {"round": round}}
        return prepare_attack(run, resolve_attack(asked, {}, [])).observation

    rounds = list(latest(seen(3), 9))
    assert len(rounds) == 3
    for number, found in zip((3, 2, 1), rounds, strict=True):
        for client, exchange in next(latest(seen(number), 1)).items():
            for one, other in ((exchange.before, found[client].before),
                               (exchange.after, found[client].after)):  # fmt: skip
                states = (one.state_dict(), other.state_dict())
                for name, value in states[0].items():
                    assert torch.allclose(value, states[1][name], atol=1e-5), (number, name)


# --- low-rank adapters --------------------------------------------------------------------------


class Pieces(nn.Module):
    """Images (n, 1, 8, 8) as four tokens of 16 pixels."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.unfold(images, 4, stride=4).transpose(1, 2)


class MeanToken(nn.Module):
    """Tokens (n, T, d), averaged behind a ReLU."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.relu().mean(1)


def adapted_exchange(members: Tensor, steps: int = 1) -> SentModels:
    """A model of tokens with a low-rank adapter, before and after steps on images of members."""
    rng = stream(2, "adapter")
    adapter = LowRank(frozen(nn.Linear(16, 24), rng), AdapterForm(rank=3, alpha=6.0))
    model = nn.Sequential(Pieces(), adapter, MeanToken(), nn.Linear(24, 2))
    return exchange_after(model, members, steps, rng)


def frozen(layer: nn.Module, rng: torch.Generator) -> nn.Module:
    """A layer whose weight and bias are buffers, drawn anew."""
    for name in ("weight", "bias"):
        value = torch.randn(getattr(layer, name).shape, generator=rng) / 4
        delattr(layer, name)
        layer.register_buffer(name, value, persistent=False)
    return layer


def exchange_after(
    model: nn.Module, members: Tensor, steps: int, rng: torch.Generator
) -> SentModels:
    """A model of drawn parameters, and the same after steps on images of members."""
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=rng) / 4)
    after = copy.deepcopy(model)
    optimiser = torch.optim.SGD(after.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(after(members), torch.arange(len(members)) % 2)
        loss.backward()
        optimiser.step()
    return SentModels(model.eval(), after.eval(), True)


def unexplained(rows: Tensor, by: Tensor) -> float:
    """Share of rows that is not in the span of others."""
    rows, by = rows.double(), by.double()
    return float((rows - rows @ torch.linalg.pinv(by) @ by).norm() / rows.norm())


def test_rows_of_a_lie_in_the_span_of_inputs_and_those_of_b_in_that_of_a_x():
    members = torch.rand(2, 1, 8, 8, generator=stream(3, "images"))
    exchange = adapted_exchange(members)
    before, after = (one[1] for one in (exchange.before, exchange.after))
    tokens = Pieces()(members).reshape(-1, 16)
    others = Pieces()(torch.rand(2, 1, 8, 8, generator=stream(4, "images"))).reshape(-1, 16)
    change = {n: getattr(before, n).weight - getattr(after, n).weight for n in ("down", "up")}
    assert unexplained(change["down"].detach(), tokens) < 1e-4
    assert unexplained(change["down"].detach(), others) > 0.1
    reduced = tokens @ before.down.weight.detach().T
    assert unexplained(change["up"].detach(), reduced) < 1e-4
    assert torch.linalg.matrix_rank(reduced) == 3  # every row is explained by these, whoever's
    assert of_tokens(exchange, members) == ["1.down"] and widest(exchange, members) == "3"


def test_with_a_fresh_b_the_first_step_leaves_a_as_it_was():
    layer = LowRank(nn.Linear(6, 5), AdapterForm(rank=2, alpha=4.0))
    layer(torch.randn(7, 6)).square().sum().backward()
    assert not layer.down.weight.grad.any() and layer.up.weight.grad.any()


def test_tokens_tell_members_by_their_shares_of_the_rows_of_a():
    images = torch.rand(60, 1, 8, 8, generator=stream(5, "images"))
    members = torch.zeros(60, dtype=torch.bool)
    members[:2] = True
    exchange = adapted_exchange(images[members], steps=3)
    strangers = torch.rand(80, 1, 8, 8, generator=stream(6, "images"))
    change = exchange.before[1].down.weight - exchange.after[1].down.weight
    change = torch.cat([change.detach(), torch.zeros(3, 1)], 1)

    def scores(rows: Tensor) -> Tensor:
        own, known = (
            features(exchange.before, "1.down", some, torch.device("cpu"))
            for some in (images, strangers)
        )
        assert own.shape == (240, 17)
        return by_rows(own, known, rows, 1e-4, 1e-3).reshape(60, 4).mean(1)

    assert auc(scores(change), members) > 0.8
    noise = torch.randn(change.shape, generator=stream(7, "noise")) * change.std()
    assert auc(scores(noise), members) < 0.8


def test_places_of_a_map_tell_members_by_the_first_layer_of_a_bottleneck():
    images = torch.rand(60, 1, 8, 8, generator=stream(5, "images"))
    members, rng = torch.arange(60) < 2, stream(2, "adapter")
    block = nn.Sequential(frozen(nn.Conv2d(1, 24, 4, stride=4), rng), nn.ReLU())
    adapter = Bottleneck(block, 24, AdapterForm(rank=6))
    model = nn.Sequential(adapter, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 2))
    exchange = exchange_after(model, images[members], 3, rng)
    assert of_tokens(exchange, images) == ["0.down"] and widest(exchange, images) == "3"
    before, after = (one[0].down for one in (exchange.before, exchange.after))
    change = torch.cat([(before.weight - after.weight).flatten(1),
                        (before.bias - after.bias)[:, None]], 1).detach()  # fmt: skip
    strangers = torch.rand(80, 1, 8, 8, generator=stream(6, "images"))
    own, known = (
        features(exchange.before, "0.down", some, torch.device("cpu"))
        for some in (images, strangers)
    )
    assert own.shape == (240, 25)
    noise = torch.randn(change.shape, generator=stream(7, "noise")) * change.std()
    found, control = (
        auc(by_rows(own, known, rows, 1e-4, 1e-3).reshape(60, 4).mean(1), members)
        for rows in (change, noise)
    )
    assert found > 0.9 > 0.8 > control
