"""What knowing a defence is worth to an attacker, on tiny data: adaptive beats naive by far."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.attacks.common.channels import (
    noise_std,
    objective_as_sent,
    rows_resent,
    update_as_sent,
    upload_behind,
)
from fedre_privacy.attacks.common.hidden_masks import with_masks_shown
from fedre_privacy.attacks.common.objectives import l2rel
from fedre_privacy.attacks.mixtures.linear_solver import total_least_squares
from fedre_privacy.core.artifacts import EntangledRep, GradientState, Prototypes, Representations
from fedre_privacy.core.channels import NOTHING, Channel, Noise, Rounding
from fedre_privacy.core.types import Candidates, KnownDefense, Observation, Upload
from fedre_privacy.defenses.base import FederationFacts, defenses
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.entanglement.quantised import largest_remainder
from fedre_privacy.experiments.attack import attack
from fedre_privacy.models.split import Normalise, SplitModel
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train
from fedre_privacy.threats.base import threats

SHAPE = (1, 8, 8)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def observed(targets, uploads=None, *, threat="strong", **others):
    values = {
        "threat": threats.get(threat), "targets": tuple(targets),
        "uploads": tuple(uploads or targets), "broadcasts": (), "extractors": {},
        "image_shape": SHAPE, "num_classes": 10, **others,
    }  # fmt: skip
    return Observation(**values)


def known(name, **settings):
    """What is declared of a defence or a scheme."""
    if name in schemes.names():
        return KnownDefense(name, settings, schemes.get(name)(**settings).channel())
    facts = FederationFacts("fedgh", (Prototypes,), ((1,),), (1,), rounds=1)
    return KnownDefense(name, settings, defenses.get(name)(**settings).channel(facts))


def both(given, run):
    """Results with and without knowledge of the defence."""
    return run(given), run(replace(given, defenses=()))


def relative(found, true):
    return float((found - true).norm() / true.norm())


@pytest.fixture
def net():
    """A smooth net that gradient matching solves."""
    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, stride=2), nn.Sigmoid(),
        nn.Conv2d(8, 8, 3, padding=1), nn.Sigmoid(), nn.Flatten(),
    )  # fmt: skip
    model = SplitModel(backbone, nn.Identity(), dim=128, num_classes=10, normalise=Normalise())
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model.eval().requires_grad_(False)


@pytest.mark.slow
def test_a_pruned_gradient_is_matched_where_it_was_sent(net, digits, sending):
    image = F.avg_pool2d(digits.images[:1].float() / 255, 2)
    model = net.requires_grad_(True)
    loss = F.cross_entropy(model(image), digits.labels[:1].long())
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    whole = GradientState(
        {n: g for (n, _), g in zip(model.named_parameters(), slopes, strict=True)}
    )
    net.requires_grad_(False)
    sent = defenses.get("prune")(keep=0.3).defend(whole, sending(), rng())
    given = observed(
        [Upload(0, 1, (sent,))], models={(0, 1): net}, images_per_target=1,
        defenses=(known("prune", keep=0.3),),
    )  # fmt: skip
    dlg = attacks.get("dlg")(steps=25, restarts=1)
    aware, naive = both(given, lambda o: (dlg(o, Context()).images - image).square().mean())
    assert aware < naive / 10 and aware < 1e-3


def noisy_prototypes(z=0.1, rounds=20, drift=0.02):
    """Uploads of prototypes that drift slowly, with noise, and those of the last round."""
    true = torch.randn(3, 64, generator=rng(1)).abs()
    true = true / true.norm(dim=1, keepdim=True)
    std = z * 2 * 3**0.5
    uploads = []
    for t in range(1, rounds + 1):
        true = true + drift / 8 * torch.randn(true.shape, generator=rng(10 + t))
        seen = true + std * torch.randn(true.shape, generator=rng(100 + t))
        uploads.append(Upload(0, t, (Prototypes(seen, torch.tensor([1, 4, 7])),)))
    return true, uploads


def test_noise_is_averaged_out_over_rounds():
    true, uploads = noisy_prototypes()
    given = observed(
        uploads[-1:], uploads, threat="eavesdropper",
        defenses=(known("gaussian", clip=1.0, noise=0.1),),
    )  # fmt: skip
    average = attacks.get("average")()
    aware, naive = both(given, lambda o: relative(average(o).vectors, true))
    assert aware < naive / 2.5
    assert average(given).rounds_used.tolist() == [20] * 3
    still, moving = noisy_prototypes(z=0.001, drift=2.0)
    fast = observed(moving[-1:], moving, threat="eavesdropper", defenses=given.defenses)
    assert relative(average(fast).vectors, still) < 0.1  # what moves fast is not averaged


def test_an_average_of_noise_alone_tells_nothing():
    true, uploads = noisy_prototypes()
    blank = [
        Upload(0, u.round, (Prototypes(a.means - true, a.labels),))
        for u in uploads
        for a in u.artifacts
        if isinstance(a, Prototypes)
    ]
    for sent, least, most in ((uploads, 0.7, 1.0), (blank, -0.35, 0.35)):
        given = observed(
            sent[-1:], sent, threat="eavesdropper",
            defenses=(known("gaussian", clip=1.0, noise=0.1),),
        )  # fmt: skip
        found = attacks.get("average")()(given).vectors.double()
        cosine = torch.cosine_similarity(found, true.double())
        assert least < float(cosine.mean()) < most


CLASSES = torch.tensor([1, 4, 7])
PUBLIC = torch.randn(10, 64, generator=rng(20)).abs()
"""Class means that a server with labelled images knows; extractors here return the image."""


def prototypes_near(spread):
    return PUBLIC[CLASSES] + spread * torch.randn(3, 64, generator=rng(22))


def rounds_of(name, true, count, sent):
    """Uploads that `name` reads: `sent(artifact, round)` of prototypes, or of mixtures of them."""
    uploads = []
    for t in range(1, count + 1):
        artifact = Prototypes(true, CLASSES)
        if name == "disentangle":
            weight = torch.rand(3, generator=rng(300 + t))
            weight = weight / weight.sum()
            encoding = torch.zeros(10).index_copy(0, CLASSES, weight)
            artifact = EntangledRep(weight @ true, encoding)
        uploads.append(Upload(0, t, (sent(artifact, t),)))
    return uploads


def with_rows(artifact, rows):
    key = "rep" if isinstance(artifact, EntangledRep) else "means"
    return replace(artifact, **{key: rows[0] if key == "rep" else rows})


def strongly_observed(uploads, *declared):
    aux = PUBLIC.repeat(20, 1) + 0.1 * torch.randn(200, 64, generator=rng(21))
    return observed(
        uploads[-1:], uploads, extractors={(0, u.round): nn.Flatten() for u in uploads},
        aux=aux.reshape(-1, *SHAPE), aux_labels=torch.arange(10).repeat(20), defenses=declared,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["average", "disentangle"])
@pytest.mark.parametrize("loud", [0.3, 3.0, 30.0])
def test_public_class_means_weigh_in_as_much_as_noise_asks_for(name, loud):
    """Under any noise the answer is no worse than the class means, or than the uploads alone."""
    true = prototypes_near(0.5)

    def noisy(artifact, t):
        drawn = torch.randn(artifact.rows().shape, generator=rng(200 + t))
        return with_rows(artifact, artifact.rows() + loud * drawn)

    uploads = rounds_of(name, true, 16, noisy)
    given = strongly_observed(uploads, known("gaussian", clip=20.0, noise=loud / 40))
    weak = replace(given, threat=threats.get("eavesdropper"))
    attack = attacks.get(name)(**({"clamp": False} if name == "disentangle" else {}))
    strong, alone = (relative(attack(o, Context()).vectors, true) for o in (given, weak))
    floor = relative(PUBLIC[CLASSES], true)
    assert strong < 1.05 * min(floor, alone)
    if loud == 0.3:
        assert strong < 0.6 * floor


@pytest.mark.parametrize("name", ["average", "disentangle"])
def test_what_was_shortened_is_lengthened_again(name):
    """Of mixtures other rounds tell by how much; of prototypes, public images alone."""
    true = 1.1 * prototypes_near(0.3)
    bound = 0.6 * float(true.norm(dim=1).min())

    def shortened(artifact, t):
        rows = artifact.rows()
        return with_rows(artifact, rows * (bound / rows.norm(dim=1, keepdim=True)).clamp(max=1))

    uploads = rounds_of(name, true, 12, shortened)
    given = strongly_observed(uploads, known("clip", norm=bound, where="upload"))
    attack = attacks.get(name)()
    aware, naive = both(given, lambda o: relative(attack(o, Context()).vectors, true))
    assert naive > 0.3
    assert aware < (0.1 if name == "disentangle" else 0.2)
    drowned = rounds_of(
        name, true, 12, lambda a, t: shortened(with_rows(a, 9 * _noise_like(a, t)), t)
    )
    noise = replace(given, targets=tuple(drowned[-1:]), uploads=tuple(drowned))
    assert relative(attack(noise, Context()).vectors, true) > 0.95 * naive


@pytest.mark.parametrize("name", ["average", "disentangle"])
@pytest.mark.parametrize("rescale", [False, True])
def test_coordinates_are_taken_from_the_rounds_that_had_them(name, rescale, sending):
    true = prototypes_near(0.5)
    mask = defenses.get("mask")(keep=0.25, rescale=rescale)
    uploads = rounds_of(name, true, 24, lambda a, t: mask.defend(a, sending(), rng(500 + t)))
    given = strongly_observed(uploads, known("mask", keep=0.25, rescale=rescale))
    attack = attacks.get(name)()
    aware, naive = both(given, lambda o: relative(attack(o, Context()).vectors, true))
    floor = relative(PUBLIC[CLASSES], true)
    assert naive > 0.5 and aware < 0.35 * floor
    # noise in place of what was sent tells nothing: no nearer than the class means
    noise = rounds_of(
        name, true, 24,
        lambda a, t: mask.defend(with_rows(a, _noise_like(a, t)), sending(), rng(500 + t)),
    )  # fmt: skip
    drowned = attack(replace(given, targets=tuple(noise[-1:]), uploads=tuple(noise)), Context())
    assert relative(drowned.vectors, true) > 0.95 * floor


@pytest.mark.parametrize("name", ["average", "disentangle"])
@pytest.mark.parametrize(
    "order",
    [
        "mask, clip",
        "clip, mask",
        "mask, gaussian",
        "clip",
        "quantise",
        "clip, quantise",
        "quantise, clip",
    ],
)
def test_chains_are_undone_together(name, order, sending):
    true = prototypes_near(0.5)
    least = float(true.norm(dim=1).min())
    bound = (0.6 if order == "clip, mask" else 0.3) * least
    settings = {
        "mask": {"keep": 0.3},
        "clip": {"norm": bound, "where": "upload"},
        "gaussian": {"clip": bound, "noise": 0.01},
        "quantise": {"bits": 4 if order == "quantise, clip" else 2},
    }
    applied = [(part, settings[part]) for part in order.split(", ")]

    def sent(artifact, t):
        for n, (part, given) in enumerate(applied):
            artifact = defenses.get(part)(**given).defend(artifact, sending(), rng(10 * t + n))
        return artifact

    uploads = rounds_of(name, true, 24, sent)
    seen = strongly_observed(uploads, *(known(part, **given) for part, given in applied))
    attack = attacks.get(name)()
    aware = relative(attack(with_masks_shown(seen), Context()).vectors, true)
    naive = relative(attack(replace(seen, defenses=()), Context()).vectors, true)
    floor = relative(PUBLIC[CLASSES], true)
    assert aware < min(0.75 * floor, 0.85 * naive), (naive, aware, floor)
    drowned = rounds_of(name, true, 24, lambda a, t: sent(with_rows(a, _noise_like(a, t)), t))
    noise = replace(seen, targets=tuple(drowned[-1:]), uploads=tuple(drowned))
    told = relative(attack(with_masks_shown(noise), Context()).vectors, true)
    assert told > 0.95 * floor, (told, floor)


def _noise_like(artifact, seed):
    return torch.randn(artifact.rows().shape, generator=rng(700 + seed))


def mixed(rounds, classes, seed=3):
    drawn = torch.rand(rounds, classes, generator=rng(seed), dtype=torch.float64)
    weights = drawn / drawn.sum(1, keepdim=True)
    true = torch.randn(classes, 64, generator=rng(seed + 1), dtype=torch.float64).abs()
    return weights, true


def mixtures(reps, encodings, **others):
    uploads = [
        Upload(0, t + 1, (EntangledRep(rep.float(), said.float()),))
        for t, (rep, said) in enumerate(zip(reps, encodings, strict=True))
    ]
    return observed(uploads[-1:], uploads, threat="eavesdropper", num_classes=10, **others)


def padded(weights):
    return F.pad(weights, (0, 10 - weights.shape[1]))


def centred(found, true):
    true = true - true.mean(0)
    found = found.double() - found.double().mean(0)
    return float(F.cosine_similarity(found, true, dim=1).mean())


def test_noise_on_mixtures_is_expected_in_disentangling():
    weights, true = mixed(16, 4)
    clip = float((weights @ true).norm(dim=1).max())
    reps = weights @ true
    std = 4.0 * float(true.std())
    reps = reps + std * torch.randn(reps.shape, generator=rng(9), dtype=torch.float64)
    given = mixtures(
        reps, padded(weights), defenses=(known("gaussian", clip=clip, noise=std / 2 / clip),)
    )
    solve = attacks.get("disentangle")(solver="kalman", clamp=False, head_prior=False)
    aware, naive = both(given, lambda o: relative(solve(o).vectors.double(), true))
    assert aware < 0.7 * naive


def test_rounded_encodings_are_read_by_total_least_squares():
    weights, true = mixed(240, 5)
    rounded = torch.stack([largest_remainder(row, 6) for row in weights])
    given = mixtures(weights @ true, padded(rounded), defenses=(known("quantised", levels=6),))
    solve = attacks.get("disentangle")(solver="least-squares", clamp=False)
    aware, naive = both(given, lambda o: relative(solve(o).vectors.double(), true))
    assert aware < naive / 2
    moved, same = total_least_squares(rounded, weights @ true, 12**-0.5 / 6)
    assert (moved - weights).norm() < 0.5 * (rounded - weights).norm()
    torch.testing.assert_close(same, weights @ true, rtol=1e-4, atol=1e-4)
    few = total_least_squares(rounded[:5], (weights @ true)[:5], 0.1)
    assert torch.equal(few[0], rounded[:5])


def test_smoothed_encodings_are_taken_back():
    weights, true = mixed(40, 4)
    smoothed = 0.7 * padded(weights) + 0.03
    given = mixtures(weights @ true, smoothed, defenses=(known("label-smoothing", alpha=0.3),))
    solve = attacks.get("disentangle")(solver="least-squares", clamp=False)
    aware = solve(given)
    assert aware.labels.tolist() == [0, 1, 2, 3]
    assert relative(aware.vectors.double(), true) < 1e-3
    blind = solve(replace(given, defenses=()))
    assert blind.labels.tolist() == list(range(10))
    labels = attacks.get("labels")()
    assert (labels(given).support[0] > 0.5).tolist() == [True] * 4 + [False] * 6


class Rotation(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(64, 64, generator=rng(5))).Q)

    def forward(self, images):
        return images.flatten(1) @ self.weight


@pytest.mark.parametrize(
    ("defence", "margin"), [(("gaussian", {"clip": 5.0, "noise": 0.02}), 2.0),
                            (("quantise", {"bits": 2}), 1.3)],
)  # fmt: skip
def test_maps_learn_from_defended_representations(defence, margin, digits, sending):
    images = F.avg_pool2d(digits.images.float() / 255, 2)
    private, aux = images[:12], images[12:]
    extractor = Rotation()
    name, settings = defence
    made = defenses.get(name)(**settings)
    with torch.no_grad():
        clear = Representations(extractor(private), digits.labels[:12].long())
    sent = made.defend(clear, sending(kinds=(Representations,)), rng())
    given = observed(
        [Upload(0, 1, (sent,))], extractors={(0, 1): extractor}, aux=aux,
        aux_labels=digits.labels[12 : len(images)].long(), defenses=(known(name, **settings),),
    )  # fmt: skip
    linear = attacks.get("linear")(views=1)
    aware, naive = both(given, lambda o: (linear(o, Context()).images - private).square().mean())
    assert aware < naive / margin


NEEDED = {
    "gaussian": {"clip": 1.0, "noise": 1.0}, "laplace": {"clip": 1.0},
    "statistics-noise": {"clip": 1.0, "noise": 1.0},
    "dp-sgd": {"clip": 1.0, "noise": 1.0}, "dp-mf": {"clip": 1.0, "noise": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("name", defenses.names())
def test_every_defence_here_describes_a_channel_that_crosses_as_json(name):
    channel = known(name, **NEEDED.get(name, {})).channel
    assert channel is not None and channel != NOTHING
    assert Channel.from_plain(json.loads(json.dumps(channel.plain()))) == channel


def test_schemes_say_what_their_encoding_does_not_tell():
    found = {name: schemes.get(name)().channel() for name in schemes.names()}
    assert found.pop("quantised") == Channel(encoding=(Rounding(16),))
    assert found.pop("decoy") is None
    assert set(found.values()) == {NOTHING}


def test_members_of_a_mean_of_bounded_representations_are_told_by_bounded_ones():
    """Images of very different lengths, means of shortened ones; an AUC of 0.5 is a guess."""
    centres, labels = torch.rand(3, 64, generator=rng(30)), torch.arange(24) % 3

    def some(seed, labels):
        noise = 0.35 * torch.randn(len(labels), 64, generator=rng(seed))
        loud = 0.4 + 1.6 * torch.rand(len(labels), 1, generator=rng(seed + 1))
        return ((centres[labels] + noise) * loud).clamp(0, 1)

    members, others, aux = some(31, labels), some(33, labels), some(35, torch.arange(600) % 3)
    clip = defenses.get("clip")(norm=0.7 * float(aux.norm(dim=1).median()), where="representation")
    sent = clip.represent()(members)
    means = Prototypes(torch.stack([sent[labels == c].mean(0) for c in range(3)]), torch.arange(3))
    asked = torch.cat([members, others]).reshape(-1, *SHAPE)
    given = observed(
        [Upload(0, 1, (means,))], extractors={(0, 1): nn.Flatten()}, num_classes=3,
        aux=aux.reshape(-1, *SHAPE), aux_labels=torch.arange(600) % 3,
        candidates=Candidates(asked, labels.repeat(2), torch.zeros(48, dtype=torch.int64)),
        defenses=(known("clip", norm=clip.norm, where=clip.where),),
    )  # fmt: skip
    membership = attacks.get("membership")()

    def auc(o):
        scores = membership(o).scores
        return float((scores[:24, None] > scores[None, 24:]).float().mean())

    aware, naive = both(given, auc)
    assert aware > naive + 0.05 and aware > 0.9


def test_a_candidate_is_bounded_and_masked_like_the_target_but_only_if_that_was_sent():
    rows = torch.tensor([[3.0, 0.0, 4.0, 0.0]])
    sent, free = 0.2 * rows, rows
    given = observed(
        [Upload(0, 1, (Representations(sent, torch.tensor([0])),))],
        defenses=(known("clip", norm=1.0), known("mask", keep=0.5)),
    )
    matched = objective_as_sent(given, l2rel)
    candidate = torch.tensor([[6.0, 0.0, 8.0, 0.0]])
    assert float(matched(candidate, sent)) < 1e-6 < float(l2rel(candidate, sent))
    assert float(matched(candidate, free)) == float(l2rel(candidate, free))
    assert objective_as_sent(replace(given, defenses=()), l2rel) is l2rel


def test_updates_are_bounded_and_masked_as_declared():
    wanted = [torch.tensor([0.6, 0.0]), torch.tensor([[0.8]])]
    found = [torch.tensor([3.0, 5.0]), torch.tensor([[4.0]])]
    sent = update_as_sent(
        observed([], [], defenses=(known("prune", keep=0.6), known("clip", norm=1.0))).channel
    )
    torch.testing.assert_close(sent(found, wanted), wanted)
    doubled = update_as_sent(known("mask", keep=0.5, rescale=True).channel)
    assert doubled(found, wanted)[0].tolist() == [6.0, 0.0]
    assert update_as_sent(observed([], []).channel) is None


@pytest.mark.parametrize(("name", "settings"), [
    ("gaussian", {"clip": 2.0, "noise": 0.5}), ("laplace", {"clip": 2.0, "epsilon": 40.0}),
])  # fmt: skip
def test_the_noise_that_an_attacker_expects_is_the_noise_that_is_added(name, settings, sending):
    rows = torch.zeros(4, 2000)
    made = defenses.get(name)(**settings)
    sent = made.defend(
        Prototypes(rows, torch.arange(4)), sending(kinds=(Prototypes,), rounds=1), rng()
    )
    channel = known(name, **settings).channel
    (noise,) = [step for step in channel.rows if isinstance(step, Noise)]
    expected = noise_std(noise, sent.means)
    assert float(sent.means.std()) == pytest.approx(expected, rel=0.05)
    drawn = rows_resent(channel, rows, sent.means, rng(1))
    assert float(drawn.std()) == pytest.approx(expected, rel=0.05)


def test_what_another_attack_recovered_was_not_defended():
    rows = torch.randn(2, 4, generator=rng())
    given = observed(
        [Upload(0, 1, (Prototypes(rows, torch.tensor([0, 1])),))],
        defenses=(known("clip", norm=1.0),),
    )
    assert upload_behind(given, 0, 1, rows[1:]) is rows
    assert upload_behind(given, 0, 1, rows + 1e-3) is None
    assert upload_behind(given, 1, 1, rows) is None
    assert upload_behind(replace(given, defenses=()), 0, 1, rows) is None


@pytest.mark.slow
def test_an_attacker_is_told_the_defences_unless_naive(tiny, tmp_path):
    run = train(
        tiny(
            protocol={"name": "fedgh"}, defense=["gaussian:clip=1,epsilon=50,delta=0.01"],
            train={"rounds": 3},
        ),
        runs=tmp_path,
    )  # fmt: skip
    results = {}
    for attacker in ("adaptive", "naive"):
        settings = resolve_attack(
            {"attack": "average", "threat": "eavesdropper", "eval": {"attacker": attacker}}, {}, []
        )
        results[attacker] = attack(run, settings)
    aware, naive = results["adaptive"], results["naive"]
    (fact,) = aware.trial.observation.defenses
    assert fact.name == "gaussian" and fact.settings["noise"] > 0  # derived from epsilon
    assert naive.trial.observation.defenses == ()
    assert aware.record["eval"]["attacker"] == "adaptive" and aware.folder != naive.folder
    assert "; adaptive to gaussian (noise; not bound)" in aware.trial.lines()["Attacker"]
    assert aware.record["adaptation"] == [
        {
            "attack": "average", "defense": "gaussian", "described": True,
            "used": ("noise",), "unused": ("bound",),
        }
    ]  # fmt: skip
    assert naive.record["adaptation"] == []
    assert "naive: does not know gaussian" in naive.trial.lines()["Attacker"]
    assert aware.outcome.rounds_used.max() == 3 and naive.outcome.rounds_used.max() == 1
