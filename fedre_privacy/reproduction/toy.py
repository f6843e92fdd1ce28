"""The two-dimensional toy of FedRE (Figure 2, Table 8), over many seeds.

Two clients, two classes, points in the plane. The protocols, local training and the round loop are
those of every other run; only the inputs are points instead of images.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

from fedre_privacy.core.config import knob, section
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.core.files import write_frame
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.eval.report.style import save_figure
from fedre_privacy.federation import loop
from fedre_privacy.federation.recorder import Recorder
from fedre_privacy.models.split import SplitModel
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.shared_head import HeadTraining
from fedre_privacy.protocols.blocks.state import (
    SERVER_STATE,
    Client,
    Samples,
    Server,
    Setting,
    Training,
)
from fedre_privacy.protocols.fedallrep import FedAllRep
from fedre_privacy.protocols.fedgh import FedGH
from fedre_privacy.protocols.fedre import FedRE
from fedre_privacy.protocols.local import Local

from .boundary import ClientView, decision_boundaries

CLIENTS, CLASSES, DIM = 2, 2, 2

PUBLISHED = {
    "FedAllRep": 0.635,
    "FedGH": 0.605,
    "FedRE re-sampled": 0.620,
    "FedRE fixed": 0.415,
}
"""Yao et al., FedRE, CVPR 2026, Figure 2 and Table 8: one seed, 200 test points."""

PUBLISHED_TEST_POINTS = 200

COMPARISONS = (
    ("FedRE re-sampled", "FedRE fixed"),
    ("FedRE re-sampled", "FedGH"),
    ("FedRE re-sampled", "FedAllRep"),
    ("FedAllRep", "FedGH"),
    ("FedRE re-sampled", "Local"),
)
"""Pairs whose difference over seeds is reported."""


@dataclass(frozen=True, kw_only=True)
class ToySettings:
    """The toy's data, training and number of repetitions.

    The paper gives the numbers of points, clients, classes and uploads; the law of the data, the
    extractor, the step sizes and the rounds are unpublished and are our reconstruction.

    Raises:
        ConfigError: a number of points that the two classes cannot share equally.
    """

    seeds: int = knob(20, help="repetitions, each with its own points and models", ge=2)
    seed: int = knob(0, help="first seed; the others follow", ge=0)
    rounds: int = knob(80, help="communication rounds", ge=1)
    train_points: int = knob(150, help="training points of each client, even", ge=2)
    test_points: int = knob(100, help="test points of each client, even", ge=2)
    gap: float = knob(0.3, help="distance of each class mean from the middle", unit="sd", ge=0)
    shift: float = knob(1.0, help="distance of each client from the middle", unit="sd", ge=0)
    hidden: int = knob(16, help="tanh units of the extractor", ge=1)
    lr: float = knob(0.1, help="local step size", gt=0)
    batch_size: int = knob(10, help="local batch size", ge=1)
    server: HeadTraining = section(
        HeadTraining(reduction="sum"),
        help="head training, the same for every method that has a server",
    )

    def __post_init__(self) -> None:
        problems = [
            f"'{name}' is {value}; the two classes need an even number of points."
            for name in ("train_points", "test_points")
            if (value := getattr(self, name)) % CLASSES
        ]
        if problems:
            raise ConfigError(*problems)

    @property
    def best_accuracy(self) -> float:
        """What a classifier that knows the law of the data reaches on average."""
        return float(scipy.stats.norm.cdf(self.gap))


def methods(server: HeadTraining) -> dict[str, Protocol]:
    """The compared protocols by heading; all servers train in the same way."""
    return {
        "Local": Local(),
        "FedAllRep": FedAllRep(server=server),
        "FedGH": FedGH(server=server),
        "FedRE re-sampled": FedRE(resample=True, server=server),
        "FedRE fixed": FedRE(resample=False, server=server),
    }


@dataclass(frozen=True, eq=False)
class Points(Samples):
    """Points instead of images, (n, 2, 1, 1) float32 of any size: used as they are."""

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return points (b, 2, 1, 1) float32 and labels (b,)."""
        return self.pixels(index), self.labels[index]


def draw(settings: ToySettings, seed: int, client: int) -> tuple[Points, Points]:
    """Draw a client's training and test points.

    Class c of client k is normal with unit variance around (-gap or +gap, -shift or +shift), the
    signs given by c and by k. Both classes are equally many, in turn.
    """
    rng = stream(seed, "toy points", client=client)
    parts = []
    for count in (settings.train_points, settings.test_points):
        labels = torch.arange(count) % CLASSES
        points = torch.randn((count, 2), generator=rng)
        points[:, 0] += settings.gap * (2 * labels - 1)
        points[:, 1] += settings.shift * (2 * client - 1)
        parts.append(Points(points.reshape(-1, 2, 1, 1), labels))
    return parts[0], parts[1]


def build_toy_model(hidden: int) -> SplitModel:
    """Extractor 2-hidden(tanh)-2 and head Linear(2, 2); points are not normalised."""
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, DIM))
    return SplitModel(
        backbone, nn.Identity(), dim=DIM, num_classes=CLASSES, normalise=nn.Identity()
    )


@dataclass(frozen=True, eq=False)
class TrainedToy:
    """A federation after its last broadcast.

    Args:
        clients: with the models they then hold. server: its state.
        row: metrics of the last round, as the round loop gives them.
    """

    clients: list[Client]
    server: Server
    row: loop.Row


def train_toy(protocol: Protocol, settings: ToySettings, seed: int) -> TrainedToy:
    """Train one federation on one draw of the points.

    Equal seeds give equal points and equal first models to every protocol.

    Raises:
        DivergedError: a loss or a message is not finite.
    """
    training = Training(
        clients=CLIENTS, rounds=settings.rounds, batch_size=settings.batch_size, lr=settings.lr,
        eval_every=settings.rounds, seed=seed,
    )  # fmt: skip
    shares = [draw(settings, seed, k) for k in range(CLIENTS)]
    setting = Setting(
        training=training, num_classes=CLASSES, image_shape=(2, 1, 1), dims=(DIM,) * CLIENTS,
        architectures=(f"2-{settings.hidden}-2",) * CLIENTS,
        class_counts=((settings.train_points // CLASSES,) * CLASSES,) * CLIENTS,
        device=torch.device("cpu"),
    )  # fmt: skip
    clients = []
    for k, (train, test) in enumerate(shares):
        with seeded_generators(seed, "toy model"):
            model = build_toy_model(settings.hidden)
        client = Client(k, model, train, test)
        with seeded_generators(seed, "protocol state", client=k):
            protocol.start_client(client, setting)
        clients.append(client)
    with seeded_generators(seed, SERVER_STATE):
        server = protocol.start_server(setting)
    with tempfile.TemporaryDirectory() as scratch:
        rows = loop.run_rounds(
            protocol, clients, server, setting, checkpoints=Path(scratch), report=silent,
            recorder=Recorder(Path(scratch), lambda round: False),
            keep=lambda round, clients, emissions: None,
        )  # fmt: skip
    return TrainedToy(clients, server, rows[-1])


@torch.no_grad()
def confidence(clients: Sequence[Client]) -> float:
    """Mean probability of the predicted class over all test points, 0.5 to 1."""
    chances = [
        client.model(client.test.batch(slice(None))[0]).softmax(1).amax(1) for client in clients
    ]
    return float(torch.cat(chances).mean())


@dataclass(frozen=True, eq=False)
class ToyResult:
    """What the toy measured.

    Args:
        settings: as run.
        runs: one row per seed and method: ``acc_post_local`` and ``acc_post_broadcast`` (0 to 1,
            mean over clients) and ``confidence`` after the last broadcast.
        means: one row per method: mean of each of these over seeds with a 95 % interval
            (``_low``, ``_high``), the number of seeds below chance, and the published accuracy.
        differences: one row per pair of `COMPARISONS`: mean over seeds of the paired difference
            at both moments, with a 95 % interval.
        shown: the federations of the first seed.
    """

    settings: ToySettings
    runs: pd.DataFrame
    means: pd.DataFrame
    differences: pd.DataFrame
    shown: Mapping[str, TrainedToy]


MEASURES = ("acc_post_broadcast", "acc_post_local", "confidence")


def run_toy(settings: ToySettings = ToySettings(), report: Report = silent) -> ToyResult:  # noqa: B008
    """Train every method on every seed.

    Takes about 10 ms a round, method and seed on one core: two minutes at the defaults.

    Args:
        report: called with ``toy.seed`` after each seed.

    Raises:
        DivergedError: a loss or a message is not finite.
    """
    shown: dict[str, TrainedToy] = {}
    rows = []
    for number in range(settings.seeds):
        seed = settings.seed + number
        for heading, protocol in methods(settings.server).items():
            trained = train_toy(protocol, settings, seed)
            if number == 0:
                shown[heading] = trained
            row = trained.row
            rows.append({
                "seed": seed, "method": heading, "acc_post_local": row["acc_post_local"],
                "acc_post_broadcast": row["acc_post_broadcast"],
                "confidence": confidence(trained.clients), "up_scalars": row["up_scalars"],
            })  # fmt: skip
        report(Event("toy.seed", {"done": number + 1, "of": settings.seeds}))
    runs = pd.DataFrame(rows)
    return ToyResult(settings, runs, summarise(runs), compare(runs), shown)


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Mean over independent seeds and its Student interval.

    Args:
        values: at least two.
        level: of the interval, inside (0, 1).

    Returns:
        mean, low, high.
    """
    series = torch.as_tensor(values, dtype=torch.float64)
    mean, n = float(series.mean()), len(series)
    half = float(scipy.stats.t.ppf((1 + level) / 2, n - 1) * series.std() / n**0.5)
    return mean, mean - half, mean + half


def _means(values: Callable[[str], Sequence[float]]) -> dict[str, float]:
    """Mean and interval over seeds of each of `MEASURES`."""
    row = {}
    for name in MEASURES:
        row[name], row[f"{name}_low"], row[f"{name}_high"] = mean_interval(values(name))
    return row


def summarise(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of each method (see `ToyResult.means`)."""
    return pd.DataFrame([
        {
            "method": heading, "seeds": len(part), **_means(lambda name: part[name].to_list()),  # noqa: B023
            "seeds_below_chance": int((part["acc_post_broadcast"] < 1 / CLASSES).sum()),
            "published": PUBLISHED.get(str(heading)),
        }
        for heading, part in runs.groupby("method", sort=False)
    ])  # fmt: skip


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """Paired differences over seeds (see `ToyResult.differences`)."""
    wide = {name: runs.pivot(index="seed", columns="method", values=name) for name in MEASURES}
    return pd.DataFrame([
        {
            "first": first, "second": second,
            **_means(lambda name: (wide[name][first] - wide[name][second]).to_list()),  # noqa: B023
        }
        for first, second in COMPARISONS
    ])  # fmt: skip


def write_toy(result: ToyResult, folder: Path) -> list[Path]:
    """Write the figure (PNG, PDF, and its means as CSV), all runs and the differences.

    Returns:
        The files written.
    """
    settings = result.settings
    views = {
        heading: [
            ClientView(
                client.train.images.flatten(1), client.train.labels, _probability(client.model)
            )
            for client in trained.clients
        ]
        for heading, trained in result.shown.items()
    }
    error = (0.25 / PUBLISHED_TEST_POINTS) ** 0.5
    figure = decision_boundaries(
        views, result.means, result.runs, best=settings.best_accuracy, published_error=error,
        title="Two clients in the plane: where each method decides",
        caption=(
            f"Top: training points and predicted probability after the last of {settings.rounds} "
            f"rounds, seed {settings.seed}. Bottom: {settings.seeds} seeds, "
            f"{CLIENTS * settings.test_points} test points each, after the last broadcast; bars "
            "are 95 % intervals of the mean over seeds. Published values: one seed of "
            f"{PUBLISHED_TEST_POINTS} test points, whiskers are one standard error "
            f"({100 * error:.1f} points at most). The law of the data, the extractor, step sizes "
            "and rounds are our reconstruction."
        ),
    )  # fmt: skip
    written = save_figure(figure, folder / "toy", data=result.means)
    for name, frame in (("toy-runs", result.runs), ("toy-differences", result.differences)):
        path = folder / f"{name}.csv"
        write_frame(path, frame)
        written.append(path)
    return written


def _probability(model: SplitModel) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def probability(points: Tensor) -> Tensor:
        logits: Tensor = model(points.reshape(-1, 2, 1, 1))
        return logits.softmax(1)[:, 1]

    return probability
