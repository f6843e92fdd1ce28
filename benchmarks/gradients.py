"""How much of private images do gradients, updates and heads give away?

Attacks clients with real images and prints one table per part. Usage:

    python benchmarks/gradients.py PART [PART ...] --data FILE

Parts: dlg, single, batch, analytic, spear, imprint, labels, update, modes, head, speed. FILE holds
x_train (N, H, W, C) or (N, C, H, W) and y_train, for example CIFAR-10. Victims' images come from
the first half of the file, without those that settings were chosen on (--tuning attacks those
instead); warm-up training and everything an attacker could hold come from the second. With
--training FOLDER (an image folder or a .zip of one) models train on that, with flips and crops,
without images close to any of the first half. Every number is printed beside the trivial answer's:
the mean image of the second half, scored by the same rule.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.active_server.base import ServerKnowledge, ServerView, steerings
from fedre_privacy.attacks.base import Attack, Context, attacks
from fedre_privacy.attacks.gradients import label_counts as label_rules
from fedre_privacy.attacks.gradients.matching import UpdateMatch
from fedre_privacy.attacks.gradients.matching import gradient as simulate
from fedre_privacy.attacks.gradients.objectives import cosine
from fedre_privacy.attacks.gradients.search import Descent
from fedre_privacy.attacks.gradients.victims import Victim
from fedre_privacy.attacks.head import METHODS as HEAD_METHODS
from fedre_privacy.attacks.imprint import read_bins
from fedre_privacy.attacks.spear import decompose_gradient
from fedre_privacy.core.artifacts import GradientState, ModelState
from fedre_privacy.core.cuda_graphs import capture_for
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.types import LocalTrainingFacts, Mixture, Observation, Truth, Upload
from fedre_privacy.data.imagefolder import ImageFolder
from fedre_privacy.data.npz import Npz
from fedre_privacy.eval import PublicImages, draw_galleries, identify, matcher
from fedre_privacy.eval.floors import diverged_targets, worst_of
from fedre_privacy.eval.intervals import cluster_means
from fedre_privacy.eval.metrics import metrics
from fedre_privacy.eval.metrics.psnr_pfllib import published_floors
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.models.hidden import HiddenLayer, first_hidden
from fedre_privacy.models.split import Normalise, load_parameters
from fedre_privacy.threats.base import threats

CLASSES = 10
BN = "eval"
"""Clients here compute gradients in evaluation mode, and the attacker knows."""
TUNED = 256
"""Images of the draw on which the attacks' settings were chosen; left out."""
TUNED_HEAD = 1200
"""First images of the file, among which those are on which `head`'s settings were chosen."""
AUX = 600
"""Public images that attacks are given."""
CLOSE = 0.02
"""Images whose thumbnails differ by less (root mean square) are copies of one picture."""
METRICS = {name: metrics.get(name)() for name in ("psnr", "ssim", "psnr_pfllib")}


@dataclass(frozen=True)
class Images:
    """Pixels in [0, 1] (N, C, H, W) and labels (N,); the second half is public."""

    pixels: Tensor
    labels: Tensor

    @property
    def public(self) -> PublicImages:
        """What an attacker could hold."""
        half = len(self.labels) // 2
        return PublicImages(self.pixels[half:], self.labels[half:])


def load(path: str) -> Images:
    """Read the training part of a file."""
    data = Npz(path=path).load()
    pixels = data.floats(torch.arange(data.num_train))
    return Images(pixels, data.labels[: data.num_train].long())


# --- victims --------------------------------------------------------------------------------------


def smooth_lenet(seed: int) -> nn.Module:
    """The net of the deep-leakage papers: sigmoids, strides, weights uniform in +-0.5."""
    with seeded_generators(seed, "smooth lenet"):
        net = nn.Sequential(
            Normalise(),
            nn.Conv2d(3, 12, 5, padding=2, stride=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, padding=2, stride=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(768, CLASSES),
        )
        for parameter in net.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    return net.eval()


def zoo(name: str, seed: int, **settings: Any) -> nn.Module:
    """A model of the zoo, freshly initialised."""
    with seeded_generators(seed, "victim"):
        return build_model(ModelSettings(name=name, **settings), 0, (3, 32, 32), CLASSES).eval()


def zoo_with(name: str, seed: int) -> nn.Module:
    """A model of the zoo; "-bn" behind it puts BatchNorm behind each convolution, "-dropout"
    drops a quarter of what the convolutions put out and half of what the head is given."""
    base, _, layer = name.partition("-")
    model = zoo(base, seed, **({"stem": "small"} if base.startswith("resnet") else {}))
    for part in [one for one in model.modules() if layer and isinstance(one, nn.Sequential)]:
        for place, one in reversed(list(enumerate(part))):
            if layer == "bn" and isinstance(one, nn.Conv2d):
                part.insert(place + 1, nn.BatchNorm2d(one.out_channels))
            if layer == "dropout" and isinstance(one, nn.Linear):
                part.insert(place + 2, nn.Dropout(0.5))
                part.insert(place, nn.Dropout(0.25))
    return model.eval()


def mlp(seed: int, width: int = 1024) -> nn.Module:
    """Two linear layers."""
    with seeded_generators(seed, "mlp"):
        return nn.Sequential(
            Normalise(), nn.Flatten(), nn.Linear(3072, width), nn.ReLU(), nn.Linear(width, CLASSES)
        ).eval()


def train(model: nn.Module, data: Images, steps: int, lr: float = 0.05, batch: int = 32) -> float:
    """Train on the second half of the data; returns accuracy on 1,000 images of the first."""
    half = len(data.labels) // 2
    draws = stream(0, "warm-up")
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train().to(memory_format=torch.channels_last)
    for _ in range(steps):
        rows = half + torch.randint(half, (batch,), generator=draws)
        images = data.pixels[rows].contiguous(memory_format=torch.channels_last)
        optimiser.zero_grad()
        F.cross_entropy(model(images), data.labels[rows]).backward()
        optimiser.step()
    return accuracy(model, data)


@cache
def training_images(path: str, data: Images) -> Images:
    """Images of a folder, bytes (N, C, H, W), without those close to any of the first half."""
    folder = ImageFolder(path=path).load()
    pixels, labels = folder.images[: folder.num_train], folder.labels[: folder.num_train].long()
    attacked = thumbnails(data.pixels[: len(data.labels) // 2])
    gaps = [
        torch.cdist(thumbnails(part.float() / 255), attacked).amin(1) for part in pixels.split(2000)
    ]
    apart = torch.cat(gaps) > CLOSE * attacked.shape[1] ** 0.5
    return Images(pixels[apart], labels[apart])


def thumbnails(pixels: Tensor) -> Tensor:
    """Images (N, C, H, W) averaged over blocks of 4 x 4, flat."""
    return F.avg_pool2d(pixels, 4).flatten(1)


def train_augmented(model: nn.Module, data: Images, pool: Images, steps: int) -> float:
    """Train on augmented images; returns accuracy on 1,000 images of the first half of the data.

    SGD of 64 images with momentum, the step size rising for a fifth of the steps and then falling.
    """
    draws = torch.Generator().manual_seed(0)
    optimiser = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.05, total_steps=steps, pct_start=0.2)
    model.train().to(memory_format=torch.channels_last)
    side = pool.pixels.shape[-1]
    for _ in range(steps):
        rows = torch.randint(len(pool.labels), (64,), generator=draws)
        images = pool.pixels[rows].float() / 255
        flipped = torch.rand(64, generator=draws) < 0.5
        images = torch.where(flipped[:, None, None, None], images.flip(3), images)
        x, y = torch.randint(9, (2,), generator=draws).tolist()
        images = F.pad(images, (4, 4, 4, 4), mode="reflect")[:, :, y : y + side, x : x + side]
        optimiser.zero_grad()
        images = images.contiguous(memory_format=torch.channels_last)
        F.cross_entropy(model(images), pool.labels[rows]).backward()
        optimiser.step()
        plan.step()
    return accuracy(model, data)


def accuracy(model: nn.Module, data: Images) -> float:
    """Share of 1,000 images of the first half that a model gets right; leaves it to be attacked."""
    model.eval().to(memory_format=torch.contiguous_format)
    with torch.no_grad():
        right = torch.cat([model(part).argmax(1) for part in data.pixels[:1000].split(100)])
    return float((right == data.labels[:1000]).float().mean())


def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What a FedSGD client sends; the model stays in the mode it is in."""
    names, values = zip(*model.named_parameters(), strict=True)
    loss = F.cross_entropy(model(images), labels)
    return dict(zip(names, torch.autograd.grad(loss, values), strict=True))


def local_update(
    model: nn.Module, images: Tensor, labels: Tensor, training: LocalTrainingFacts, seed: int
) -> dict[str, Tensor]:
    """Parameters after plain SGD over shuffled batches, last short batch dropped."""
    params = {name: value.detach().clone() for name, value in model.named_parameters()}
    buffers = dict(model.named_buffers())
    count = len(labels)
    per_epoch = max(1, count // training.batch_size)
    size = min(count, training.batch_size)
    draws = stream(seed, "local batches")
    for _ in range(training.epochs):
        order = torch.randperm(count, generator=draws)
        for rows in order[: per_epoch * size].split(size):
            free = {name: value.requires_grad_() for name, value in params.items()}
            logits = torch.func.functional_call(model, (free, buffers), (images[rows],))
            loss = F.cross_entropy(logits, labels[rows])
            slopes = torch.autograd.grad(loss, list(free.values()))
            params = {
                name: (value - training.lr * slope).detach()
                for (name, value), slope in zip(free.items(), slopes, strict=True)
            }
    return params


def observe(
    model: nn.Module | Sequence[nn.Module],
    artifacts: Sequence[GradientState | ModelState],
    size: int,
    training: LocalTrainingFacts | None = None,
) -> Observation:
    """One client per artifact, all in round 1."""
    models = [model] * len(artifacts) if isinstance(model, nn.Module) else model
    targets = tuple(Upload(client, 1, (a.detached_copy(),)) for client, a in enumerate(artifacts))
    return Observation(
        threat=threats.get("realistic"),
        targets=targets,
        uploads=targets,
        broadcasts=(),
        extractors={},
        image_shape=(3, 32, 32),
        num_classes=CLASSES,
        training=training,
        models={(client, 1): one for client, one in enumerate(models)},
        images_per_target=size,
    )


# --- scores ---------------------------------------------------------------------------------------


Pairs = Sequence[tuple[Tensor, Tensor]]
"""Images (B, C, H, W) and labels (B,) of each victim."""


def batches(
    data: Images, count: int, size: int, *, tuning: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """Batches of the first half, drawn without replacement; of images to tune on, or the rest."""
    order = (seen if tuning else unseen)(data)[: count * size]
    return [(data.pixels[rows], data.labels[rows]) for rows in order.split(size)]


def unseen(data: Images) -> Tensor:
    """Rows of the first half in random order, without those that settings were chosen on."""
    return shuffled(data)[TUNED:]


def seen(data: Images) -> Tensor:
    """Rows of the first half that settings are chosen on."""
    return shuffled(data)[:TUNED]


def shuffled(data: Images) -> Tensor:
    """Rows of the first half in random order."""
    return torch.randperm(len(data.labels) // 2, generator=stream(0, "victims"))


def truth_of(pairs: Pairs, index: Tensor | None = None) -> Truth:
    """Each row may be any image of its victim's batch, or with `index` (N,) is one image."""
    size, count = len(pairs[0][1]), sum(len(y) for _, y in pairs)
    clients = torch.arange(len(pairs)).repeat_interleave(size)
    rows = torch.arange(count)
    samples = index
    if index is None:
        samples = (clients[:, None] * size + torch.arange(size)).flatten()
        rows = rows.repeat_interleave(size)
    return Truth(
        images=torch.cat([x for x, _ in pairs]),
        labels=torch.cat([y for _, y in pairs]),
        clients=clients,
        mixture=Mixture(rows, samples, torch.ones(len(rows)), count),
        target_clients=clients,
        target_labels=torch.full((count,), -1),
    )


def scores(answers: Tensor, pairs: Pairs, data: Images) -> dict[str, Tensor]:
    """PSNR (dB), SSIM and being found first among 100 images, each (N,).

    Images of a batch are assigned to the answers so that the summed squared error is least.
    """
    match = matcher("assigned", truth_of(pairs))(answers)
    paired = truth_of(pairs, match.index)
    found = identify(answers, draw_galleries(paired, data.public), paired, data.public)
    values = {name: metric(answers, match.originals) for name, metric in METRICS.items()}
    return {**values, "hit": found.hit1}


def beside_floor(
    found: Reconstruction, pairs: Pairs, data: Images
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Scores of an attack and of the mean image, each (N,).

    What the attack gave up counts as the worse of the mean image and black, and as not found.
    """
    lost = diverged_targets(found)
    answers = found.images.masked_fill(lost.reshape(-1, 1, 1, 1), 0.0)
    ours = scores(answers, pairs, data)
    floor = scores(data.public.images.mean(0).expand_as(answers), pairs, data)
    for name, metric in METRICS.items():
        worst = worst_of([ours[name], floor[name]], higher_leaks=metric.higher_leaks)
        ours[name] = torch.where(lost, worst, ours[name])
    return {**ours, "hit": ours["hit"].masked_fill(lost, 0.0)}, floor


def spread(values: Tensor, size: int) -> str:
    """95 % interval of a mean over victims of `size` images each."""
    low, high = cluster_means(
        values.double()[:, None], torch.arange(len(values)) // size
    ).interval()
    if not bool(low.isfinite()):
        return "no interval"
    return f"95 % {float(low):.2f} to {float(high):.2f}"


def report(title: str, found: Reconstruction, pairs: Pairs, data: Images) -> None:
    """Print scores of an attack beside those of the mean image."""
    ours, floor = beside_floor(found, pairs, data)
    db, size = ours["psnr"], len(pairs[0][1])
    ssim, hit = ((float(ours[key].mean()), float(floor[key].mean())) for key in ("ssim", "hit"))
    print(
        f"{title}\n    n {len(db)}, diverged {int(found.diverged.sum())}; PSNR "
        f"{float(db.mean()):.2f} ({spread(db, size)} over {len(pairs)} victims, median "
        f"{float(db.median()):.2f}, {float(db.min()):.2f} to {float(db.max()):.2f}), floor "
        f"{float(floor['psnr'].mean()):.2f}, above it {float((db - floor['psnr']).mean()):.2f} "
        f"({spread(db - floor['psnr'], size)}); SSIM {ssim[0]:.3f}, "
        f"floor {ssim[1]:.3f}; found among 100 {hit[0]:.0%}, floor {hit[1]:.0%}  "
        f"[{found.stopped_because}]",
        flush=True,
    )


def timed(attack: Attack, observation: Observation) -> tuple[Any, float]:
    """Run an attack and say how long it took (s)."""
    started = time.perf_counter()
    return attack(observation, Context()), time.perf_counter() - started


# --- parts ----------------------------------------------------------------------------------------


def dlg(data: Images, options: argparse.Namespace) -> None:
    """Deep leakage from one image, untrained smooth net, double precision."""
    count = options.images or 8
    pairs = batches(data, count, 1)
    models = [smooth_lenet(seed) for seed in range(count)]
    sent = [GradientState(gradient(m, x, y)) for m, (x, y) in zip(models, pairs, strict=True)]
    observation = observe(models, sent, 1)
    for name in (options.attacks or "dlg,idlg").split(","):
        for restarts in [options.restarts] if options.restarts else [1, 4]:
            how = {"steps": options.steps} if options.steps else {}
            found, seconds = timed(attacks.get(name)(restarts=restarts, **how), observation)
            share = float((found.fit < 1e-6).float().mean())
            report(f"{name}, restarts={restarts}", found, pairs, data)
            old_psnr(found, pairs, data)
            fits = ", ".join(f"{float(v):.0e}" for v in found.fit)
            print(f"    converged (match < 1e-6): {share:.0%}; matches {fits}; {seconds:.0f} s")


def old_psnr(found: Reconstruction, pairs: Pairs, data: Images) -> None:
    """Print the PSNR of an older library beside its own floors on these images."""
    ours = float(beside_floor(found, pairs, data)[0]["psnr_pfllib"].mean())
    floors = published_floors(torch.cat([x for x, _ in pairs]))
    print(f"    psnr_pfllib {ours:.2f}; " + ", ".join(f"{k} {v:.2f}" for k, v in floors.items()))


def inverting(
    title: str,
    model: nn.Module,
    data: Images,
    options: argparse.Namespace,
    count: int,
    size: int,
) -> None:
    """Attack `count` gradients of `size` images each."""
    how: dict[str, Any] = {"steps": options.steps or 300, **weight_of(options), **starts(options)}
    pairs = batches(data, count, size, tuning=options.tuning)
    observation = observe(model, [GradientState(gradient(model, x, y)) for x, y in pairs], size)
    started = time.process_time()
    found = attacks.get("inverting-gradients")(bn=BN, **how)(observation, Context())
    spent = time.process_time() - started
    report(f"{title}, batch of {size}, {how}", found, pairs, data)
    print(f"    {spent:.0f} s of processor time", flush=True)


@cache
def victim(name: str, warm_up: int, folder: str, data: Images) -> tuple[str, nn.Module]:
    """A model by name; "-trained" behind it trains it for `warm_up` steps, on a folder if given.

    ResNets have the small first layer, unless "-published" stands behind their name.
    """
    base = name.removesuffix("-trained")
    bare = base.removesuffix("-published")
    small = bare == base and bare.startswith("resnet")
    model = zoo(bare, 0, **({"stem": "small"} if small else {}))
    if base != name:
        right = (
            train_augmented(model, data, training_images(folder, data), warm_up)
            if folder
            else train(model, data, warm_up)
        )
        name = f"{name} (accuracy {right:.0%})"
    return name, model


def victims(names: str, data: Images, options: argparse.Namespace) -> list[tuple[str, nn.Module]]:
    """The models asked for, or those of `names`."""
    return [
        victim(name, options.warm_up, options.training, data)
        for name in (options.models or names).split(",")
    ]


def weight_of(options: argparse.Namespace) -> dict[str, float]:
    """The weight of total variation as a setting of an attack, if one was asked for."""
    return {} if options.tv is None else {"tv": options.tv}


def starts(options: argparse.Namespace) -> dict[str, Any]:
    """Several starts as settings of an attack, if they were asked for."""
    if options.restarts < 2:
        return {}
    return {"restarts": options.restarts, "combine": options.combine}


def single(data: Images, options: argparse.Namespace) -> None:
    """Inverting gradients of one image."""
    for name, model in victims("cnn4,cnn4-trained", data, options):
        inverting(name, model, data, options, options.images or 4, 1)


def batch(data: Images, options: argparse.Namespace) -> None:
    """Inverting the gradient of a batch of eight."""
    for name, model in victims("cnn4,cnn4-trained", data, options):
        inverting(name, model, data, options, options.images or 1, 8)


def analytic(data: Images, options: argparse.Namespace) -> None:
    """Closed-form recovery from a model whose first layer is linear."""
    model = mlp(0)
    for size in (1, 8, 32):
        pairs = batches(data, options.images or 4, size)
        sent = [GradientState(gradient(model, x, y)) for x, y in pairs]
        found, _ = timed(attacks.get("analytic")(), observe(model, sent, size))
        wanted = [x for x, _ in pairs]
        report(f"batch of {size}", found, pairs, data)
        gaps = torch.cat(
            [
                (f[:, None] - w[None]).abs().flatten(2).amax(2).amin(0)
                for f, w in zip(found.images.split(size), wanted, strict=True)
            ]
        )
        for limit in (1e-5, 1e-3):
            print(f"    within {limit:g}: {int((gaps < limit).sum())} of {len(gaps)}")
        print(f"    median error {float(gaps.median()):.1e}")


def spear(data: Images, options: argparse.Namespace) -> None:
    """Whole batches taken apart behind convolutions: certified inputs of a layer, then images."""
    for name, model in victims("cnn4,cnn4-trained", data, options):
        hidden = first_hidden(model)
        assert isinstance(hidden, HiddenLayer)
        for size in (4, 8):
            pairs = batches(data, options.images or 5, size, tuning=options.tuning)
            sent = [gradient(model, x, y) for x, y in pairs]
            observation = replace(
                observe(model, [GradientState(one) for one in sent], size),
                threat=threats.get("strong"),
                aux=data.public.images[:AUX],
                aux_labels=data.public.labels[:AUX],
            )
            for by in (options.attacks or "dip,ensemble-kalman").split(","):
                attack = attacks.get("spear")(by=by)
                found, seconds = timed(attack, observation)
                report(f"{name}, batch of {size}, by {by}", found, pairs, data)
                print(f"    {seconds:.0f} s")
            behind = model.get_parameter("head.weight")
            for noise in (0.0, 1e-6, 1e-5, 1e-3):
                print(f"    noise of {noise:g}: {certificates(hidden, behind, sent, pairs, noise)}")


def certificates(
    hidden: HiddenLayer,
    behind: Tensor,
    sent: Sequence[Mapping[str, Tensor]],
    pairs: Pairs,
    noise: float,
) -> str:
    """How many inputs `spear` gives a certificate, and how far they are from the true ones.

    Args:
        behind: weights of the layer behind the ReLU.
        noise: added to gradients, in their standard deviations.
    """
    certain, draws, attack = [], stream(0, "noise on gradients"), attacks.get("spear")()
    for client, one in enumerate(sent):
        noisy = [
            value + noise * value.std() * torch.randn(value.shape, generator=draws)
            for value in (one[f"{hidden.name}.weight"], one[f"{hidden.name}.bias"])
        ]
        rng = stream(0, "spear", client=client, round=1)
        made = decompose_gradient(
            hidden.layer, *noisy, rng, most=attack.most, tries=attack.tries, following=behind
        )
        certain.append(made.inputs[made.certified])
    return told(hidden, certain, pairs)


def told(hidden: HiddenLayer, certain: Sequence[Tensor], pairs: Pairs) -> str:
    """How far inputs that have a certificate, of each batch, are from the true ones."""
    errors = []
    for inputs, (images, _) in zip(certain, pairs, strict=True):
        with torch.no_grad():
            true = hidden.before(images)
        gaps = (inputs[:, None] - true).abs().amax(2).amin(1)
        errors.append(gaps / true.abs().max())
    gaps, count = torch.cat(errors), sum(len(y) for _, y in pairs)
    worst = f"; largest error {float(gaps.max()):.0e} of the largest value" if len(gaps) else ""
    return (
        f"{len(gaps)} of {count} inputs have a certificate, {int((gaps > 1e-3).sum())} of them "
        f"off by more than 1e-3, {int((gaps > 0.1).sum())} by more than 0.1{worst}"
    )


def imprint(data: Images, options: argparse.Namespace) -> None:
    """Certificates of an imprinted layer behind convolutions, after one step and after two, and
    inputs of that layer that are read off a sum over clients."""
    for name, model in victims("cnn4", data, options):
        held = ServerKnowledge(data.public.images, data.public.labels, lambda _, model=model: model)
        before = {key: value.detach().clone() for key, value in model.named_parameters()}
        view, rng = ServerView((), (), 1, CLASSES, held), stream(0, "imprint")
        (sent,) = steerings.get("imprint")().steer(view, 1, 0, (ModelState(before),), rng)
        assert isinstance(sent, ModelState)
        load_parameters(model, sent.params)
        hidden = first_hidden(model)
        assert isinstance(hidden, HiddenLayer)
        for size, steps in ((32, 1), (64, 2)):
            pairs = batches(data, options.images or 15, size, tuning=options.tuning)
            how = LocalTrainingFacts(0.06, 1, 32, {0: size})
            changes = [
                {key: sent.params[key] - after[key] for key in after}
                for after in (local_update(model, x, y, how, i) for i, (x, y) in enumerate(pairs))
            ]
            for agree in (0.01, 0.001):
                read = [
                    read_bins(
                        hidden.layer,
                        one[f"{hidden.name}.weight"],
                        one[f"{hidden.name}.bias"],
                        agree,
                    )
                    for one in changes
                ]
                certain = [one.inputs[one.certified] for one in read]
                print(f"{name}, {size} images, {steps} steps, directions agree to {agree:g}: "
                      f"{told(hidden, certain, pairs)}")  # fmt: skip
        for size in (8, 32, 128):
            pairs = batches(data, options.images or 15, size, tuning=options.tuning)
            print(f"{name}, sum over {SUMMED} clients of {size} images: "
                  f"{told_of_sums(model, hidden, pairs)}")  # fmt: skip
        load_parameters(model, before)


SUMMED = 4
"""Clients behind a sum, with as many images each."""


def told_of_sums(model: nn.Module, hidden: HiddenLayer, pairs: Pairs) -> str:
    """How many inputs of an imprinted layer come back from sums of gradients over clients."""
    model.eval()
    shares, certified, wrong = [], 0, 0
    for images, labels in pairs:
        each = zip(images.chunk(SUMMED), labels.chunk(SUMMED), strict=True)
        sent = [gradient(model, x, y) for x, y in each]
        names = f"{hidden.name}.weight", f"{hidden.name}.bias"
        weight, bias = (sum(one[name] for one in sent) / SUMMED for name in names)
        found = read_bins(hidden.layer, weight, bias, 0.01)  # type: ignore[arg-type]
        with torch.no_grad():
            true = hidden.before(images)
        apart = torch.cdist(true, found.inputs) / true.norm(dim=1, keepdim=True)
        shares.append(float((apart.amin(1) < 0.01).double().mean()))
        certified += int(found.certified.sum())
        wrong += int((apart[:, found.certified].amin(0) >= 0.01).sum())
    return (
        f"{statistics.mean(shares):.3f} of inputs read to 1 % ({min(shares):.3f} to "
        f"{max(shares):.3f}, n {len(shares)}); {certified} with a certificate, {wrong} wrong"
    )


def labels(data: Images, options: argparse.Namespace) -> None:
    """Label counts read off gradients and updates."""
    for name, model in victims("cnn4,cnn4-trained,resnet18", data, options):
        model.eval()
        weight, bias = model.head.weight.detach(), model.head.bias.detach()  # type: ignore[union-attr]
        for size in (1, 8, 32):
            right: dict[str, list[float]] = {rule: [] for rule in label_rules.STRATEGIES}
            support: dict[str, list[tuple[int, int, int]]] = {r: [] for r in right}
            for x, y in batches(data, 8, size):
                sent = gradient(model, x, y)
                wanted = torch.bincount(y, minlength=CLASSES)
                for rule, estimate in label_rules.STRATEGIES.items():
                    got = estimate(sent["head.weight"], sent["head.bias"], size, weight, bias)
                    right[rule].append(float(torch.minimum(got, wanted).sum()) / size)
                    both = int(((got > 0) & (wanted > 0)).sum())
                    support[rule].append((both, int((got > 0).sum()), int((wanted > 0).sum())))
            for rule, shares in right.items():
                both, said, held = (sum(column) for column in zip(*support[rule], strict=True))
                print(
                    f"{name:<30} n {len(shares)} B={size:<3} {rule:<7} labels right "
                    f"{statistics.mean(shares):.3f}  "
                    f"classes: precision {both / said:.3f}, recall {both / held:.3f}"
                )


def update(data: Images, options: argparse.Namespace) -> None:
    """Updates by some local steps on four images: re-run, and matched as one gradient."""
    size, count = 4, options.images or 5
    ways: tuple[dict[str, Any], ...] = (
        {"unroll": 10},
        {"unroll": 1, "at": "path"},
        {"unroll": 1, "at": "start"},
    )
    for name, model in victims("cnn4", data, options):
        pairs = batches(data, count, size, tuning=options.tuning)
        for epochs in map(int, options.local_steps.split(",")):
            how = LocalTrainingFacts(0.05, epochs, size, {client: size for client in range(count)})
            sent = [
                ModelState(local_update(model, x, y, how, seed))
                for seed, (x, y) in enumerate(pairs)
            ]
            observation = observe(model, sent, size, how)
            for way in ways[: 1 if epochs == 1 else 3][1 if epochs > 10 else 0 :]:
                attack = attacks.get("update-inversion")(
                    bn=BN,
                    steps=options.steps or 200,
                    **way,
                    **weight_of(options),
                    **starts(options),
                )
                found, seconds = timed(attack, observation)
                told = ", ".join(f"{key} {value}" for key, value in way.items())
                title = f"{name}, {size} images, {epochs} steps of lr 0.05, {told}"
                report(title, found, pairs, data)
                print(f"    {seconds:.0f} s")


MODES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "norm": [{"bn": "batch"}, {"bn": "eval"}, {"bn": "either"}],
    "dropout": [{"dropout": "masks"}, {"dropout": "off"}, {"dropout": "either"}],
}
"""In which mode an attacker may take clients to be, by the layers that differ in it."""
KINDS = ((1, 0), (4, 0), (4, 3))
"""Images and local steps of `modes`; 0: a gradient."""


def modes(data: Images, options: argparse.Namespace) -> None:
    """Clients in training and in evaluation mode, attacked as in either one."""
    networks, seeds = {}, list(map(int, options.networks.split(",")))
    for name in (options.models or "cnn4-dropout,cnn4-bn").split(","):
        networks[name] = [zoo_with(name.removesuffix("-trained"), seed) for seed in seeds]
        for one in networks[name] if name.endswith("-trained") else ():
            train(one, data, options.warm_up)
    for mode in options.client_modes.split(","):
        for name, models in networks.items():
            for size, local in KINDS:
                count = options.images or (4 if size == 1 else 2)
                end = options.skip + count * len(seeds)
                pairs = batches(data, end, size, tuning=options.tuning)[options.skip :]
                attacked = [model for model in models for _ in range(count)]
                how = LocalTrainingFacts(0.05, local, size, dict.fromkeys(range(len(pairs)), size))
                sent: list[GradientState | ModelState] = []
                for client, (model, (x, y)) in enumerate(zip(attacked, pairs, strict=True)):
                    twin = copy.deepcopy(model).train(mode == "training")
                    with seeded_generators(client, "dropout"):
                        sent.append(
                            ModelState(local_update(twin, x, y, how, client))
                            if local
                            else GradientState(gradient(twin, x, y))
                        )
                observation = observe(attacked, sent, size, how if local else None)
                what = f"{local} local steps" if local else "gradient"
                title = f"{name}, client in {mode} mode, {what}, {size} images"
                by_mode(title, observation, pairs, data, options)


def by_mode(
    title: str, observation: Observation, pairs: Pairs, data: Images, options: argparse.Namespace
) -> None:
    """Attack clients as in each mode, and print how far each is from the first."""
    name = "inverting-gradients" if observation.training is None else "update-inversion"
    ways = MODES["dropout" if "dropout" in title else "norm"]
    first: Tensor | None = None
    for way in ways:
        attack = attacks.get(name)(
            **({"bn": BN} | dict(way)), steps=options.steps or 100, **weight_of(options)
        )
        started = time.process_time()
        found = attack(observation, Context())
        spent = time.process_time() - started
        said = ", ".join(f"{key}={value}" for key, value in way.items())
        report(f"{title}, {said}", found, pairs, data)
        ours, floor = (one["psnr"] for one in beside_floor(found, pairs, data))
        first = ours if first is None else first
        above = (ours - floor).reshape(len(options.networks.split(",")), -1).mean(1)
        print(
            f"    above the floor by seed {', '.join(f'{one:+.1f}' for one in above)}; less the "
            f"first way {float((ours - first).mean()):+.2f} "
            f"({spread(ours - first, len(pairs[0][1]))}); mismatch {float(found.fit.mean()):.3f}; "
            f"{spent:.0f} s of processor time",
            flush=True,
        )


def head(data: Images, options: argparse.Namespace) -> None:
    """Prototypes from heads after real local training, against class means afterwards."""
    for name, model in victims("cnn4,cnn4-trained", data, options):
        for classes, epochs, batch_size in (
            (2, 1, 10),
            (5, 1, 10),
            (10, 1, 10),
            (10, 5, 10),
            (3, 5, 10),
        ):
            rows = unseen(data)
            rows = rows[rows >= TUNED_HEAD]
            pool = torch.cat(
                [rows[data.labels[rows] == c][: 100 // classes] for c in range(classes)]
            )
            x, y = data.pixels[pool], data.labels[pool]
            how = LocalTrainingFacts(0.01, epochs, batch_size, {0: len(y)})
            after = local_update(model, x, y, how, 0)
            observation = observe(model, [ModelState(after)], 0, how)
            with torch.no_grad():
                reps = torch.func.functional_call(
                    model.extractor,
                    {k.removeprefix("extractor."): v for k, v in after.items() if "head" not in k},
                    (x,),
                )
                start = model.extractor(x)
            means = torch.stack([reps[y == c].mean(0) for c in range(classes)])
            drift = float((reps - start).norm() / start.norm())
            answers = {
                method: timed(attacks.get("head")(method=method), observation)
                for method in HEAD_METHODS
            }
            present = torch.arange(classes)
            common = [
                c for c in range(classes) if all(c in found.labels for found, _ in answers.values())
            ]
            for method, (found, seconds) in answers.items():
                mine = torch.isin(found.labels, present)
                vectors, labels = found.vectors[mine], found.labels[mine]
                centre, wanted = means.mean(0), means[labels]
                own = F.cosine_similarity(vectors - vectors.mean(0), wanted - wanted.mean(0), 1)
                cos = F.cosine_similarity(vectors - centre, wanted - centre, 1)
                hit = (torch.cdist(vectors, means).argmin(1) == labels).float()
                both = torch.isin(labels, torch.tensor(common))
                print(
                    f"{name:<26} {classes:>2} classes, {epochs} epochs of {len(y) // batch_size} "
                    f"steps, {method:<8} cosine: own centre {float(own.mean()):.3f}, centre of "
                    f"the class means {float(cos.mean()):.3f}, identified {float(hit.mean()):.0%}; "
                    f"on the {len(common)} that all answer {float(cos[both].mean()):.3f}, "
                    f"{float(hit[both].mean()):.0%}; classes {len(labels)} of {classes} "
                    f"({int((~mine).sum())} false); features moved {drift:.0%}; {seconds:.1f} s",
                    flush=True,
                )


def speed(data: Images, options: argparse.Namespace) -> None:
    """Steps of the search per second for 1 and 8 victims: one program against one by one."""
    repeats = options.steps or 3
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name, model in victims("cnn4,resnet18", data, options):
        pairs = batches(data, 8, 1)
        people = [
            Victim(client, 1, model, gradient(model, x, y), False)
            for client, (x, y) in enumerate(pairs)
        ]
        hot = F.one_hot(torch.stack([y for _, y in pairs]), CLASSES).float().to(device)
        start = torch.rand(8, 1, 3, 32, 32, generator=stream(0, "speed")).to(device)

        def rate(  # type: ignore[no-untyped-def]
            size: int, count: int = 8, graph: bool = False, people=people, hot=hot, start=start
        ) -> tuple[float, Tensor]:
            """Victim-steps per second, `size` victims in a program, and their first objectives."""
            runs, first = [], []
            for rows in (slice(i, i + size) for i in range(0, count, size)):
                match = UpdateMatch(people[rows], simulate, cosine, bn=BN, device=device)
                capturer = capture_for(device) if graph else None
                search = Descent(
                    match, start[rows], start[rows], hot[rows], tv=0.02, capturer=capturer
                )
                search.turn_to(0, 0.1)
                search.step()
                first.append(search.value.clone())
                runs.append(search.ready(print))
            best = 0.0
            for _ in range(repeats + 1):
                started = time.perf_counter()
                for run in runs:
                    run()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                best = max(best, count / (time.perf_counter() - started))
            return best, torch.cat(first)

        (one, _), (loop, alone), (together, joint) = rate(1, 1), rate(1), rate(8)
        # A GPU convolves in TensorFloat-32 and takes other kernels for groups.
        near = 1e-3 if device.type == "cpu" else 2e-2
        torch.testing.assert_close(joint, alone, rtol=near, atol=1e-5)
        told = (
            f"{name:<12} on {device}: victim-steps per second: 1 victim {one:.1f}; 8 victims one "
            f"after another {loop:.1f}, together {together:.1f} (x{together / loop:.2f})"
        )
        if capture_for(device) is not None:
            captured, _ = rate(8, graph=True)
            told += f", together in one captured step {captured:.1f} (x{captured / loop:.2f})"
        print(told, flush=True)


PARTS: Mapping[str, Callable[[Images, argparse.Namespace], None]] = {
    "dlg": dlg,
    "single": single,
    "batch": batch,
    "analytic": analytic,
    "spear": spear,
    "imprint": imprint,
    "labels": labels,
    "update": update,
    "modes": modes,
    "head": head,
    "speed": speed,
}


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("parts", nargs="+", choices=PARTS)
    options.add_argument("--data", required=True)
    options.add_argument("--images", type=int, default=0, help="victims; 0: each part's own number")
    options.add_argument("--steps", type=int, default=0, help="steps; 0: each part's own number")
    options.add_argument("--models", default="", help="comma list; empty: each part's own")
    options.add_argument("--warm-up", type=int, default=60, help="steps that -trained models train")
    options.add_argument(
        "--training", default="", help="image folder or .zip that -trained models train on"
    )
    options.add_argument("--local-steps", default="1,5,10", help="of update: comma list")
    options.add_argument("--networks", default="11,12,13", help="of modes: seeds, comma list")
    options.add_argument("--skip", type=int, default=0, help="of modes: batches left out")
    options.add_argument(
        "--client-modes", default="training,evaluation", help="of modes: comma list"
    )
    options.add_argument("--tuning", action="store_true", help="attack images to tune on")
    options.add_argument("--tv", type=float, help="weight of total variation; none: the default")
    options.add_argument(
        "--attacks", default="", help="of dlg: comma list; empty: dlg,idlg; of spear: by which"
    )
    options.add_argument("--restarts", type=int, default=0, help="starts; 0: 1 (dlg: 1, then 4)")
    options.add_argument("--combine", default="mean", help="of several starts, but for dlg")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts asked for."""
    chosen = parser().parse_args(arguments)
    data = load(chosen.data)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {len(data.labels)} images"
    )
    for part in chosen.parts:
        print(f"\n{part}")
        PARTS[part](data, chosen)


if __name__ == "__main__":
    main()
