"""Plug-ins that cheat: they answer from everything but the upload, and must score as chance does.

They look at the order, the number, the memory and the last bits of what they are given. A list of
candidates with a planted leak shows that each of them finds what it looks for.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Attack, Context
from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.outcomes import (
    LabelEstimate,
    MembershipScores,
    Reconstruction,
    RecoveredPrototypes,
)
from fedre_privacy.core.types import Candidates, Observation, Upload
from fedre_privacy.eval.membership import evaluate_membership
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.questions.membership import MembershipTrial
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train

RUNS, DRAWS = 4, 5
"""Trainings with splits of their own, and draws of candidates from each."""
SLACK = 0.04
"""About three standard deviations of the AUC of some 1,400 pairs in strata of about nine."""


@pytest.fixture(scope="module")
def split_runs(tiny, tmp_path_factory):
    """The same data split anew for every run."""
    folder = tmp_path_factory.mktemp("cheats")
    data = {"name": "digits", "size": 16, "per_class": 60}
    return [
        train(
            tiny(
                protocol="fedgh",
                data=data,
                train={"rounds": 1, "clients": 4, "batch_size": 32, "seed": seed},
            ),
            runs=folder,
        )
        for seed in range(RUNS)
    ]


def ask(target: str, cheat: Attack | None = None, **more: Any) -> Any:
    problems: list[str] = []
    settings = resolve_attack({"target": target, "threat": "strong", **more}, {}, problems)
    if settings is None or problems:
        raise ConfigError(*problems)
    return settings if cheat is None else replace(settings, attack=cheat)


# --- membership ----------------------------------------------------------------------------------

Cheat = Callable[[Candidates], Tensor]


@dataclass(frozen=True, kw_only=True)
class MembershipCheat(Attack):
    """Answers from the list of candidates alone."""

    name = "cheat"
    consumes = (Prototypes,)
    answers = "membership"

    rule: Cheat = field(default=lambda asked: torch.zeros(len(asked)))

    def run(self, observation: Observation, context: Context) -> MembershipScores:
        assert observation.candidates is not None
        return MembershipScores(self.rule(observation.candidates).float(), ())


def index(asked: Candidates) -> Tensor:
    return -torch.arange(len(asked)).double()


def position_within(asked: Candidates, *keys: Tensor) -> Tensor:
    """Place of each candidate among those that agree with it in all keys."""
    seen: Counter[tuple[int, ...]] = Counter()
    places = []
    for key in zip(*(k.tolist() for k in keys), strict=True):
        places.append(seen[key])
        seen[key] += 1
    return torch.tensor(places).double()


def digests(asked: Candidates) -> list[bytes]:
    return [hashlib.sha256(image.numpy().tobytes()).digest() for image in asked.images]


def times_asked(asked: Candidates) -> Tensor:
    found = digests(asked)
    counts = Counter(found)
    return -torch.tensor([counts[d] for d in found]).double()


def memory(asked: Candidates) -> Tensor:
    return -torch.tensor([image.data_ptr() for image in asked.images]).double()


def off_grid(asked: Candidates) -> Tensor:
    """How far values are from multiples of 1/255 as they are computed in one step."""
    grid = (asked.images * 255).round().to(torch.uint8).float() / 255
    return (asked.images - grid).abs().flatten(1).sum(1).double()


def neighbours_agree(asked: Candidates) -> Tensor:
    """Whether label and client are those of the candidate before."""
    same = (asked.labels == asked.labels.roll(1)) & (asked.clients == asked.clients.roll(1))
    return same.double()


CHEATS: dict[str, Cheat] = {
    "index": index,
    "reverse index": lambda asked: -index(asked),
    "order within the client": lambda asked: -position_within(asked, asked.clients),
    "order within client and class": lambda asked: (
        -position_within(asked, asked.clients, asked.labels)
    ),
    "parity of the index": lambda asked: index(asked) % 2,
    "parity within the client": lambda asked: position_within(asked, asked.clients) % 2,
    "how often an image is asked": times_asked,
    "how many candidates its client has": lambda asked: torch.bincount(asked.clients)[
        asked.clients
    ].double(),
    "memory address": memory,
    "distance to the grid of values": off_grid,
    "last bits of the sum": lambda asked: asked.images.flatten(1).double().sum(1) * 255 % 1,
    "sum of pixels": lambda asked: asked.images.flatten(1).double().sum(1),
    "order of hashes": lambda asked: torch.tensor([d[0] * 256.0 + d[1] for d in digests(asked)]),
    "label and client as before": neighbours_agree,
}


@pytest.fixture(scope="module")
def membership_games(split_runs) -> list[MembershipTrial]:
    return [
        prepare_attack(run, ask("membership", eval={"seed": seed}))
        for run in split_runs
        for seed in range(DRAWS)
    ]


def pooled_auc(trials: list[tuple[Candidates, Tensor]], rule: Cheat) -> tuple[float, int]:
    """AUC within a trial, client and class, over all trials; and candidates compared."""
    scores, members, strata, labels = [], [], [], []
    for number, (asked, inside) in enumerate(trials):
        scores.append(rule(asked))
        members.append(inside)
        strata.append(asked.clients + 1000 * number)
        labels.append(asked.labels)
    auc = evaluate_membership(
        torch.cat(scores), torch.cat(members), torch.cat(strata), torch.cat(labels), draws=2
    ).get("auc")
    return auc.value, auc.n


@pytest.mark.parametrize("name", CHEATS)
def test_the_list_of_candidates_tells_nothing(membership_games, name):
    trials = [(trial.candidates, trial.members) for trial in membership_games]
    found, compared = pooled_auc(trials, CHEATS[name])
    assert compared > 2000
    assert abs(found - 0.5) < SLACK


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_is_called_a_leak(split_runs, name):
    settings = ask("membership", MembershipCheat(rule=CHEATS[name]))
    trial = prepare_attack(split_runs[0], settings)
    card = trial.score(settings.attack(trial.observation))
    assert card.verdict.word != "leaks"


def planted(trial: MembershipTrial, order: Tensor) -> tuple[Candidates, Tensor]:
    asked = trial.candidates
    kept = Candidates(asked.images[order], asked.labels[order], asked.clients[order])
    return kept, trial.members[order]


def members_first(trial: MembershipTrial) -> tuple[Candidates, Tensor]:
    """The list as it would be without a shuffle: clients in turn, members before others."""
    key = trial.candidates.clients * 2 + (~trial.members).long()
    return planted(trial, key.argsort(stable=True))


def members_at_odd_places(trial: MembershipTrial) -> tuple[Candidates, Tensor]:
    sides = [trial.members.nonzero(), (~trial.members).nonzero()]
    return planted(trial, torch.stack(sides[::-1], dim=1).flatten())


def in_pairs_of_members(trial: MembershipTrial) -> tuple[Candidates, Tensor]:
    """Others first, by an order of their own; members sorted by client and class."""
    asked = trial.candidates
    key = asked.clients * 1000 + asked.labels
    inside = trial.members.nonzero().squeeze(1)
    inside = inside[key[inside].argsort(stable=True)]
    return planted(trial, torch.cat([(~trial.members).nonzero().squeeze(1), inside]))


def others_asked_of_two(trial: MembershipTrial) -> tuple[Candidates, Tensor]:
    asked = trial.candidates
    twice = (~trial.members).nonzero().squeeze(1)
    more = Candidates(
        torch.cat([asked.images, asked.images[twice]]),
        torch.cat([asked.labels, asked.labels[twice]]),
        torch.cat([asked.clients, (asked.clients[twice] + 1) % 4]),
    )
    return more, torch.cat([trial.members, torch.zeros(len(twice)).bool()])


def members_off_grid(trial: MembershipTrial) -> tuple[Candidates, Tensor]:
    """Members that went through one more product and quotient."""
    asked = trial.candidates
    moved = torch.where(trial.members[:, None, None, None], asked.images * 3.3 / 3.3, asked.images)
    return replace(asked, images=moved), trial.members


PLANTED: dict[str, tuple[Callable[[MembershipTrial], tuple[Candidates, Tensor]], float]] = {
    "index": (members_first, 1.0),
    "order within the client": (members_first, 1.0),
    "order within client and class": (members_first, 1.0),
    "memory address": (members_first, 1.0),
    "parity of the index": (members_at_odd_places, 1.0),
    "how often an image is asked": (others_asked_of_two, 1.0),
    "distance to the grid of values": (members_off_grid, 0.95),
    "label and client as before": (in_pairs_of_members, 0.6),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_cheats_find_what_is_planted(membership_games, name):
    plant, least = PLANTED[name]
    found, _ = pooled_auc([plant(trial) for trial in membership_games], CHEATS[name])
    assert found >= least


def test_candidates_are_drawn_evenly(membership_games):
    for trial in membership_games:
        asked = trial.candidates
        key = asked.clients * 1000 + asked.labels
        inside, outside = key[trial.members].sort().values, key[~trial.members].sort().values
        assert torch.equal(inside, outside)  # as many of each in every client and class
        assert len(set(digests(asked))) == len(asked)
        assert len(asked) >= 100


# --- what is in memory ---------------------------------------------------------------------------


def tensors_in(value: Any, at: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor that an attack can reach without running anything."""
    if isinstance(value, Tensor):
        yield at, value
    elif isinstance(value, nn.Module):
        for name, one in value.state_dict(keep_vars=True).items():
            yield f"{at}.{name}", one
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name for item in dataclasses.fields(value)}
        assert set(vars(value)) <= fields, f"{at} holds more than its fields"
        for name in sorted(fields):
            yield from tensors_in(getattr(value, name), f"{at}.{name}")
    elif isinstance(value, Mapping):
        for key in value:
            yield from tensors_in(value[key], f"{at}[{key}]")
    elif isinstance(value, tuple | list):
        for number, one in enumerate(value):
            yield from tensors_in(one, f"{at}[{number}]")


@pytest.mark.parametrize("protocol", ["fedgh", "fedre", "fedallrep"])
@pytest.mark.parametrize(
    "target",
    [
        "uploaded",
        "representations",
        "prototypes",
        "entangled",
        "labels",
        "membership",
        "source",
        "retrieval",
    ],  # fmt: skip
)
def test_no_tensor_shows_more_than_its_values(runs, protocol, target):
    """A view into a larger tensor, a graph or an attribute would carry what was not granted."""
    attack = (
        {"attack": {"name": "pixel"}}
        if target not in ("labels", "membership", "source", "retrieval")
        else {}
    )
    trial = prepare_attack(runs[protocol], ask(target, **attack))
    for at, tensor in tensors_in(trial.observation):
        whole = tensor.numel() * tensor.element_size()
        assert tensor.untyped_storage().nbytes() == whole, at
        assert tensor._base is None or tensor._base.numel() == tensor.numel(), at
        assert tensor.grad_fn is None and tensor.grad is None, at
        assert not vars(tensor), at


def test_a_view_would_be_noticed():
    whole = torch.zeros(10, 4)
    upload = Upload(0, 1, (Representations(whole[:2], torch.zeros(2)),))
    part = next(tensor for at, tensor in tensors_in(upload) if at.endswith("reps"))
    assert part.untyped_storage().nbytes() > part.numel() * part.element_size()


# --- the other questions -------------------------------------------------------------------------


def rows_of(upload: Upload) -> Tensor:
    return torch.cat([r for a in upload.artifacts if (r := a.rows()) is not None])


@dataclass(frozen=True, kw_only=True)
class LabelCheat(Attack):
    """Claims classes by what is beside the content: the client's number, its place, memory."""

    name = "cheat"
    consumes = (Prototypes, EntangledRep)
    answers = "labels"

    rule: Callable[[int, Upload], int] = field(default=lambda place, upload: place)

    def run(self, observation: Observation, context: Context) -> LabelEstimate:
        classes = observation.num_classes
        said = [self.rule(i, upload) for i, upload in enumerate(observation.targets)]
        support = torch.stack([(torch.arange(classes) + s) % 3 > 0 for s in said]).float()
        return LabelEstimate(
            torch.tensor([upload.client for upload in observation.targets]),
            support,
            support / support.sum(1, keepdim=True),
            torch.tensor([100.0 + s for s in said]),
            (),
        )


LABEL_CHEATS: dict[str, Callable[[int, Upload], int]] = {
    "place": lambda place, upload: place,
    "client": lambda place, upload: upload.client,
    "memory": lambda place, upload: rows_of(upload).data_ptr() // 64,
    "values": lambda place, upload: int(rows_of(upload).sum() * 1000) % 97,
}


@pytest.mark.parametrize("name", LABEL_CHEATS)
def test_labels_are_not_told_by_place_or_memory(split_runs, name):
    for run in split_runs[:2]:
        settings = ask("labels", LabelCheat(rule=LABEL_CHEATS[name]))
        trial = prepare_attack(run, settings)
        card = trial.score(settings.attack(trial.observation))
        assert card.verdict.word != "leaks"


@dataclass(frozen=True, kw_only=True)
class ImageCheat(Attack):
    """Answers with auxiliary pictures, or with what lies in memory around the target."""

    name = "cheat"
    consumes = (Representations, Prototypes, EntangledRep)
    answers = "images"

    rule: Callable[[Observation, int], Tensor] = field(default=lambda seen, count: torch.zeros(1))

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        count = observation.image_count()
        images = self.rule(observation, count).clamp(0, 1)
        images = images.expand(count, *observation.image_shape).contiguous()
        return Reconstruction(
            images, images, torch.zeros(count), torch.zeros(1, count), torch.zeros(1), "no steps",
            torch.zeros(count).bool(),
        )  # fmt: skip


def around(seen: Observation, count: int) -> Tensor:
    """The storage behind the targets read as pictures, from its end."""
    size = torch.Size(seen.image_shape).numel()
    out = torch.zeros(count, size)
    found = []
    for upload in seen.targets:
        for artifact in upload.artifacts:
            rows = artifact.rows()
            if rows is not None:
                held = torch.empty(0).set_(rows.untyped_storage()).flip(0)
                found += [held[:size] for _ in rows]
    for row, values in zip(out, found, strict=True):
        row[: len(values)] = values
    return out.reshape(count, *seen.image_shape)


IMAGE_CHEATS: dict[str, Callable[[Observation, int], Tensor]] = {
    "grey": lambda seen, count: torch.full((1, 1, 1, 1), 0.5),
    "auxiliary pictures in order": lambda seen, count: seen.aux[torch.arange(count) % 20],
    "auxiliary pictures backwards": lambda seen, count: seen.aux.flip(0)[torch.arange(count) % 20],
    "their mean": lambda seen, count: seen.aux.mean(0, keepdim=True),
    "memory around the target": around,
}


@pytest.mark.parametrize(
    "target", ["uploaded", pytest.param("representations", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", IMAGE_CHEATS)
def test_images_are_not_told_by_order_or_memory(split_runs, name, target):
    settings = ask(target, ImageCheat(rule=IMAGE_CHEATS[name]), eval={"targets": 24})
    trial = prepare_attack(split_runs[0], settings)
    card = trial.score(settings.attack(trial.observation))
    assert card.verdict.word != "leaks"


@dataclass(frozen=True, kw_only=True)
class PrototypeCheat(Attack):
    """Answers for every class of every client without unmixing anything."""

    name = "cheat"
    consumes = (EntangledRep,)
    answers = "prototypes"

    rule: Callable[[Upload, int, int], Tensor] = field(
        default=lambda upload, label, place: torch.zeros(1)
    )

    def run(self, observation: Observation, context: Context) -> RecoveredPrototypes:
        vectors, clients, labels = [], [], []
        for place, upload in enumerate(observation.targets):
            mixed = rows_of(upload)[0]
            for label in range(observation.num_classes):
                vectors.append(self.rule(upload, label, place).expand(mixed.shape))
                clients.append(upload.client)
                labels.append(label)
        count = len(vectors)
        last = observation.targets[0].round
        return RecoveredPrototypes(
            torch.stack(vectors), torch.tensor(clients), torch.tensor(labels),
            torch.full((count,), last), torch.ones(count).long(), torch.full((count,), torch.nan),
            torch.full((count,), torch.nan), (),
        )  # fmt: skip


def unit(upload: Upload, label: int, place: int) -> Tensor:
    return nn.functional.one_hot(torch.tensor(label), rows_of(upload).shape[1]).float()


def shifted(upload: Upload, label: int, place: int) -> Tensor:
    return rows_of(upload)[0].roll(label)


PROTOTYPE_CHEATS: dict[str, Callable[[Upload, int, int], Tensor]] = {
    "the upload": lambda upload, label, place: rows_of(upload)[0],
    "a unit vector by class": unit,
    "the upload shifted by the class": shifted,
    "place and class": lambda upload, label, place: torch.tensor([float(label + 10 * place)]),
}


@pytest.mark.parametrize("name", PROTOTYPE_CHEATS)
def test_prototypes_are_not_told_by_class_numbers(runs, name):
    settings = ask("uploaded", PrototypeCheat(rule=PROTOTYPE_CHEATS[name]))
    trial = prepare_attack(runs["fedre"], settings)
    card = trial.score(settings.attack(trial.observation))
    assert card.verdict.word != "leaks"
