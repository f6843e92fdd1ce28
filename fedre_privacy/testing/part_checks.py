"""What metrics, threat models, questions, data sets, partitions and architectures promise."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.shadow_attacks.base import ShadowAttack, ShadowSignals, shadow_attacks
from fedre_privacy.core.config import knobs
from fedre_privacy.core.errors import (
    ConfigError,
    FedreError,
    IncompatibleError,
    MissingExtraError,
    MissingInputError,
)
from fedre_privacy.core.outcomes import Outcome
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.types import Knowledge, ThreatModel
from fedre_privacy.data.base import Dataset, ImageData, datasets
from fedre_privacy.eval.metrics.base import Metric, metrics
from fedre_privacy.experiments.questions.base import Question, questions
from fedre_privacy.models.zoo import architectures
from fedre_privacy.models.zoo.base import Architecture
from fedre_privacy.partition.base import Partition, partitions, split_clients

from .federation import NotApplicable, expect, name_of, survives

SHAPE = (3, 32, 32)
LABELS = np.random.RandomState(0).permutation(np.repeat(np.arange(10), 150)).astype(np.int64)
"""Labels that are shared out."""


def refuses(work: Callable[[], object], sentence: str) -> None:
    """Check that something is refused with an `IncompatibleError`.

    Raises:
        AssertionError: the sentence.
    """
    try:
        work()
    except IncompatibleError:
        return
    raise AssertionError(sentence)


# --- parts of any kind ---------------------------------------------------------------------------

LONGEST_CLAUSE = 100


def it_says_when_to_use_it(part: Any) -> None:
    """A part says in a short clause of its own when to take it (`when_to_use`)."""
    said = vars(part).get("when_to_use", "")
    expect(isinstance(said, str) and bool(said), "It does not say when to take it: when_to_use.")
    short = len(said) <= LONGEST_CLAUSE and said == " ".join(said.split())
    expect(short, f"when_to_use is no line of at most {LONGEST_CLAUSE} characters: '{said}'.")
    expect(not said.endswith("."), f"when_to_use is a clause, without a full stop: '{said}'.")


# --- metrics -------------------------------------------------------------------------------------


def metric_of(cls: type[Metric]) -> Metric:
    """A metric with its defaults.

    Raises:
        NotApplicable: a file or a package that it needs is absent.
    """
    name_of(cls, metrics)
    made = cls()
    try:
        made.check(SHAPE)
    except (MissingExtraError, MissingInputError) as error:
        raise NotApplicable(str(error)) from error
    return made


def pictures() -> Tensor:
    """Six smooth pictures in [0, 1]."""
    coarse = torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(coarse, 32, mode="bilinear").clamp(0, 1)


def noisy(size: float) -> Tensor:
    """The same pictures under noise."""
    noise = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(1))
    return (pictures() + size * noise).clamp(0, 1)


def metric_declarations(cls: type[Metric]) -> None:
    """It has a title, a definition and digits, and keeps its settings."""
    made = metric_of(cls)
    expect(bool(made.title and made.definition(SHAPE)), "It has no title or no definition.")
    expect(made.digits >= 0, "It prints a negative number of digits.")
    survives(metrics, made, "metrics")


def nearer_pictures_leak_more(cls: type[Metric]) -> None:
    """Its values move with nearness in the direction that it declares."""
    metric = metric_of(cls)
    near, far = (metric(noisy(size), pictures()) for size in (0.02, 0.4))
    expect(near.shape == (6,) and near.dtype == torch.float64, "It gives no number for each pair.")
    right = (near > far) if metric.higher_leaks else (near < far)
    expect(bool(right.all()), f"higher_leaks = {metric.higher_leaks}, and nearer pictures do not.")


def a_pair_is_scored_alone(cls: type[Metric]) -> None:
    """A pair has the same score whoever stands beside it, and in any order."""
    metric, sent = metric_of(cls), noisy(0.1)
    together = metric(sent, pictures())
    alone = metric(sent[2:3], pictures()[2:3])
    near = torch.allclose(alone, together[2:3], rtol=1e-5, atol=1e-7)
    expect(near, "A pair's score depends on the pairs beside it.")
    turned = metric(sent.flip(0), pictures().flip(0))
    expect(torch.allclose(turned, together.flip(0), rtol=1e-5), "Scores depend on the order.")


def what_diverged_has_no_score(cls: type[Metric]) -> None:
    """NaN has the score NaN, and other scales and shapes are refused."""
    metric, sent = metric_of(cls), noisy(0.1)
    sent[1, 0, 0, 0] = torch.nan
    lost = metric(sent, pictures()).isnan().tolist()
    expect(lost == [i == 1 for i in range(6)], "A picture with NaN has a score, or others none.")
    refuses(lambda: metric(pictures() * 255, pictures()), "It scores pictures of another scale.")
    refuses(lambda: metric(pictures(), pictures()[:3]), "It scores pictures without a partner.")


METRIC_CHECKS: tuple[Callable[[type[Metric]], None], ...] = (
    metric_declarations,
    nearer_pictures_leak_more,
    a_pair_is_scored_alone,
    what_diverged_has_no_score,
)


# --- threat models and questions -----------------------------------------------------------------


def it_says_who_it_is(threat: ThreatModel) -> None:
    """A threat model has a summary, grants uploads, and lets some attack run."""
    expect(bool(threat.name and threat.summary), "It has no name or no summary.")
    expect(threat.rounds in ("last", "all"), f"'rounds' is '{threat.rounds}': last or all.")
    expect(Knowledge.UPLOADS in threat.grants, "It does not grant UPLOADS.")
    able = [name for name in attacks.names() if attacks.get(name).needs <= threat.grants]
    expect(bool(able), "It grants too little for any attack.")


def somebody_answers_it(cls: type[Question]) -> None:
    """A question says which outcome answers it, and some attack returns that."""
    name = name_of(cls, questions)
    question = cls()
    expect(question.name == name and bool(cls.__doc__), "It has no name or no docstring.")
    outcome = question.outcome()
    expect(issubclass(outcome, Outcome) and outcome is not Outcome, "Its outcome is none.")
    wanted = question.answered_by or name
    answered = {attacks.get(one).answers for one in attacks.names()}
    expect(wanted in answered, f"No attack answers '{wanted}'.")


# --- data sets, partitions, architectures --------------------------------------------------------


def few_of(cls: type[Dataset]) -> Dataset:
    """A data set of four images a class, of files that are there: nothing is fetched."""
    known = {knob.name for knob in knobs(cls)}
    return cls(per_class=4, **({"download": False} if "download" in known else {}))


@cache
def data_of(cls: type[Dataset]) -> ImageData:
    """A few images of a data set.

    Raises:
        NotApplicable: it needs files that are absent.
    """
    name_of(cls, datasets)
    try:
        return few_of(cls).load()
    except (MissingInputError, ConfigError) as error:
        expect(bool(str(error)), "It does not say which file it needs.")
        raise NotApplicable(str(error).splitlines()[0]) from error


def it_loads_the_same_bytes(cls: type[Dataset]) -> None:
    """A data set has the same images each time, as many of a class as asked for, as bytes."""
    data = data_of(cls)
    expect(data.name == cls.name, f"Its images say that they are of '{data.name}'.")
    expect(data.images.dtype == torch.uint8, "Its images are no bytes.")
    expect(data.sha256 == few_of(cls).load().sha256, "It loads other images each time.")
    for labels in (data.labels[: data.num_train], data.labels[data.num_train :]):
        most = int(torch.bincount(labels, minlength=1).max())
        expect(most <= 4, f"per_class=4 leaves {most} images of a class; see keep_per_class.")
    absent = [str(path) for path in few_of(cls).sources() if not path.exists()]
    expect(not absent, f"It names files that do not exist: {', '.join(absent)}.")


def it_shares_every_class_out(cls: type[Partition]) -> None:
    """A partition deals every class out, no sample twice, the same for the same seed."""
    name = name_of(cls, partitions)
    made = cls()
    expect(made.name == name and bool(cls.__doc__), "It has no name or no docstring.")
    known = {knob.name for knob in knobs(cls)}
    expect(made.shorthand in ("", *known), f"Its shorthand '{made.shorthand}' is no setting.")
    survives(partitions, made, "partition")
    for clients in (5, 10):
        one, again, other = (split_clients(made, LABELS, clients, seed) for seed in (1, 1, 2))
        equal = (one.sha256_train, one.sha256_test) == (again.sha256_train, again.sha256_test)
        expect(equal, "The same seed deals otherwise the second time.")
        expect(len(one.train) == len(one.test) == len(other.train) == clients, "Clients are lost.")
        whole = np.concatenate([*one.train, *one.test])
        once = len(np.unique(whole)) == len(whole)
        expect(once, "It deals a sample out twice.")
        expect(whole.min() >= 0 and whole.max() < len(LABELS), "It deals out what is not there.")
        expect(all(len(own) for own in one.train), f"One of {clients} clients gets nothing.")
        expect(set(LABELS[whole]) == set(range(10)), "A class is dealt out to nobody.")
        counted = one.class_counts(LABELS, 10).sum() == sum(len(own) for own in one.train)
        expect(bool(counted), "Its counts of classes are not those of its shares.")


def it_makes_features(cls: type[Architecture]) -> None:
    """An architecture makes (n, d) finite features that take a gradient, the same for a seed."""
    name_of(cls, architectures)
    if cls.parametric:
        raise NotApplicable("it takes a name and a file of weights")
    made = cls()
    survives(architectures, made, "model")
    if needed := made.needed():
        raise NotApplicable(f"it needs {needed}")
    shape = next((s for s in ((1, 16, 16), (3, 32, 32), (3, 64, 64)) if made.takes(*s[1:])), None)
    if shape is None:
        raise NotApplicable("it takes large images only")
    nets = []
    for _ in range(2):
        with seeded_generators(3, "architecture"):
            nets.append(made.build(shape))
    (net, length), (twin, _) = nets
    images = torch.rand(3, *shape, generator=stream(0, "images")).requires_grad_()
    ready = made.preprocess(shape)(images)
    features = net.eval()(ready)
    expect(features.shape == (3, length), f"It promises (n, {length}), makes {features.shape}.")
    expect(bool(features.isfinite().all()), "Its features are not finite.")
    expect(torch.equal(features, twin.eval()(ready)), "The same seed draws other weights.")
    (slope,) = torch.autograd.grad(features.sum(), [images])
    expect(bool(slope.isfinite().all()), "The gradient by the image is not finite.")


# --- shadow attacks ------------------------------------------------------------------------------


def shadow_signals(signal: float) -> ShadowSignals:
    """Signals of a world and of 16 shadow worlds, higher by `signal` where a slot is a member."""
    rounds, clients, slots, shadows = 2, 2, 12, 16
    rng = stream(0, "worlds")
    owner = torch.arange(slots) % clients
    coins = torch.rand(shadows, slots, generator=rng) < 0.5
    own = torch.arange(slots) < slots // 2

    def signals(member: Tensor) -> Tensor:
        noise = torch.randn(rounds, clients, slots, generator=rng, dtype=torch.float64)
        return noise + signal * member.double()

    return ShadowSignals(
        sent=signals(own),
        before=torch.randn(rounds, slots, generator=rng, dtype=torch.float64),
        shadows=torch.stack([signals(member) for member in coins]),
        coins=coins,
        clients=owner,
        labels=torch.zeros(slots, dtype=torch.int64),
    )


def members_score_higher(cls: type[ShadowAttack]) -> None:
    """A shadow attack scores every slot, members higher where signals tell, the same each time."""
    name_of(cls, shadow_attacks)
    made: Any = cls()
    survives(shadow_attacks, made, "shadow attack")
    expect(0 <= made.needs_shadows <= 16, "It needs more than 16 shadow worlds.")
    view = shadow_signals(8.0)
    scores = made.score(view)
    expect(scores.shape == (12,) and bool(scores.isfinite().all()), "A slot has no score.")
    expect(torch.equal(scores, made.score(view)), "The same view is scored otherwise.")
    if made.needs_shadows:
        above = float(scores[:6].mean()) > float(scores[6:].mean())
        expect(above, "Members score lower than others where signals tell them apart.")


def default_part(cls: type[Any]) -> Any:
    """A part with its defaults.

    Raises:
        NotApplicable: it needs settings that have no default.
    """
    try:
        return cls()
    except FedreError as error:
        raise NotApplicable(f"it needs settings: {error}") from error
