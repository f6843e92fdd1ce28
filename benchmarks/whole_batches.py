"""How often does `spear` take a whole batch apart, by the size of the batch?

    python benchmarks/whole_batches.py --data FILE.npz --out batches.csv
        [--networks 100,101,102,103,104] [--batches 4] [--sizes 8,9,10,12,14,16] [--noise 0]

Gradients of mean cross-entropy by networks with a hidden layer of 512 units, dense or behind two
convolutions, untrained and trained. Victims' images come from the first half of FILE.npz, training
images from the last two fifths. With `--noise` normal noise comes on top, as shares of the standard
deviation of each tensor of the gradient. A row for each batch; a table is printed, with the chance
that draws of units alone find all samples of a batch, by which units they leave off. Settings were
chosen on networks 0 to 49.
"""

from __future__ import annotations

import argparse
import time

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.spear import DEAD, POOLS, decompose_gradient
from fedre_privacy.data.npz import Npz

STEPS = {"dense": 200, "convolutions": 150}
"""Steps of training, of 32 images."""
IMAGES = 5000
"""First images of the file, which are all that is used."""
RIGHT = 1e-3
"""Error of an input that counts as right, of the largest value."""


def network(seed: int, kind: str, steps: int, images: Tensor, labels: Tensor) -> nn.Sequential:
    """Images (n, 3, 32, 32) to ten logits; the last three layers are linear, ReLU, linear."""
    torch.manual_seed(seed)
    before: list[nn.Module] = [nn.Flatten()]
    if kind == "convolutions":
        first = [nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2)]
        before = [*first, nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    width = 3072 if kind == "dense" else 1600
    model = nn.Sequential(*before, nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 10))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        rows = torch.randint(len(labels) * 3 // 5, len(labels), (32,))
        optimiser.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimiser.step()
    return model


@torch.no_grad()
def chance(layer: nn.Linear, inputs: Tensor, gradient: Tensor, tries: int) -> float:
    """Of finding all samples by draws, if units are off independently; see `draws_needed`.

    Args:
        inputs: (r, n), the layer's. gradient: (m, n), of its weights.
        tries: draws of r - 1 units among those with the smallest gradients.
    """
    size, count = gradient.norm(dim=1), len(inputs)
    alive = (size > DEAD * size.max()).nonzero().squeeze(1)
    pool = alive[size[alive].argsort()[: POOLS[2] * count]]
    off = (layer(inputs)[:, pool] <= 0).double().mean(1)
    return float((1 - (1 - off ** (count - 1)) ** tries).prod())


def apart(
    model: nn.Sequential, images: Tensor, labels: Tensor, seed: int, noise: float
) -> dict[str, float]:
    """Certified inputs of a batch, those that are wrong, their largest error, processor seconds."""
    layer, head = model[-3], model[-1]
    assert isinstance(layer, nn.Linear) and isinstance(head, nn.Linear)
    loss = F.cross_entropy(model(images), labels)
    sent = torch.autograd.grad(loss, [layer.weight, layer.bias])
    draws = torch.Generator().manual_seed(seed)
    sent = tuple(g + noise * g.std() * torch.randn(g.shape, generator=draws) for g in sent)
    with torch.no_grad():
        true = model[:-3](images)
    attack, begun = attacks.get("spear")(), time.process_time()
    found = decompose_gradient(
        layer,
        *sent,
        torch.Generator().manual_seed(seed),
        most=max(attack.most, len(labels)),
        tries=attack.tries,
        following=head.weight,
    )
    seconds = time.process_time() - begun
    gaps = (found.inputs[found.certified][:, None] - true).abs().amax(2).amin(1) / true.abs().max()
    return {
        "certified": len(gaps),
        "wrong": int((gaps > RIGHT).sum()),
        "error": float(gaps.amax()) if len(gaps) else 0.0,
        "seconds": round(seconds, 2),
        "chance": chance(layer, true, sent[0], attack.tries),
    }


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each noise, network and size of batch."""
    rows = rows.assign(whole=rows.certified == rows["images"])
    return rows.groupby(["noise", "network", "images"], sort=False).agg(
        n=("whole", "size"),
        whole=("whole", "sum"),
        certified=("certified", "sum"),
        chance=("chance", "mean"),
        wrong=("wrong", "sum"),
        error=("error", "max"),
        seconds=("seconds", "mean"),
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument("--data", required=True, metavar="FILE.npz")
    made.add_argument("--out", default="batches.csv", help="rows of batches")
    made.add_argument("--networks", default="100,101,102,103,104", help="seeds, comma list")
    made.add_argument("--batches", type=int, default=4, help="of each network and size")
    made.add_argument("--sizes", default="8,9,10,12,14,16", help="images of a batch, comma list")
    made.add_argument("--noise", default="0", help="shares of a gradient's spread, comma list")
    return made


def main() -> None:
    """Run as the command line says and print the table."""
    options = parser().parse_args()
    data = Npz(path=options.data).load()
    count = min(IMAGES, data.num_train)
    images, labels = data.floats(torch.arange(count)), data.labels[:count].long()
    rows = []
    shares = [float(share) for share in options.noise.split(",")]
    for seed in map(int, options.networks.split(",")):
        for kind, steps in STEPS.items():
            for trained in (0, steps):
                model = network(seed, kind, trained, images, labels)
                for size in map(int, options.sizes.split(",")):
                    for place in range(options.batches):
                        draw = torch.Generator().manual_seed(10 * seed + place)
                        mine = torch.randperm(len(labels) // 2, generator=draw)[:size]
                        name = f"{kind}, {'trained' if trained else 'untrained'}"
                        for noise in shares:
                            own = {"noise": noise, "network": name, "seed": seed, "images": size}
                            made = apart(
                                model, images[mine], labels[mine], 10 * seed + place, noise
                            )
                            rows.append({**own, **made})
    table = pd.DataFrame(rows)
    table.to_csv(options.out, index=False)
    print(summary(table).to_string(float_format="{:.2g}".format))


if __name__ == "__main__":
    main()
