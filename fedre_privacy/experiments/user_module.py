"""Attack one's own module and what was computed with it: no run, no data set, no folder."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from fedre_privacy.attacks.base import Attack, Context, attacks
from fedre_privacy.core.artifacts import Artifact, GradientState, Prototypes, Representations
from fedre_privacy.core.config import build_plugin
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.events import Report, silent
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.registry import allow_module_paths
from fedre_privacy.core.types import Knowledge, ThreatModel, Upload
from fedre_privacy.eval import DEFAULT_METRICS, Card
from fedre_privacy.eval.metrics.base import Metric
from fedre_privacy.eval.metrics.base import metrics as metric_registry
from fedre_privacy.models.probe import settle
from fedre_privacy.runs.device import choose_device
from fedre_privacy.runs.settings import AttackSettings, Evaluation
from fedre_privacy.sandbox.client import AUTO, choose_isolation, run_attack
from fedre_privacy.sandbox.module_recipes import frozen_copies

from .attack import AttackResult, attack_into
from .external_checks import MASKED, Findings
from .external_names import Layout
from .external_trial import normalising_as, prepare_external
from .external_uploads import ExternalUploads, classes_seen, supporting_attacks
from .questions.base import Trial
from .user_checks import Labels, as_labels, as_rows, check_classes, output_width
from .user_inputs import (
    notes_of,
    public_for,
    read_gradient,
    read_images,
    shape_of,
    statistics_of,
    truth_for,
)

OWN = (0, 1)
"""(client, round) under which the module stands."""


@dataclass(frozen=True, eq=False)
class ModuleResult:
    """What an attack recovered from one's own module, and how well; printing it shows a table.

    Args:
        trial: what was played.
        outcome: what the attack returned.
        card: its scores beside their floors, or the evidence where no truth was given.
        isolation: where the attack ran. A module given as an object cannot be handed to another
            process, so it is ``same-process``: the attack's code is trusted not to look around.
        written: the result with its folder, where one was asked for.
    """

    trial: Trial
    outcome: Reconstruction
    card: Card
    isolation: str
    written: AttackResult | None = None

    @property
    def notes(self) -> Sequence[str]:
        """What was done to the module, and what else a reader must know."""
        return (*self.trial.run.notes, *self.card.notes)

    @property
    def images(self) -> Tensor:
        """Recovered images (n, C, H, W) in [0, 1]; NaN where the attack diverged."""
        return self.outcome.images

    def table(self) -> list[dict[str, str]]:
        """Scores beside their floors, or the evidence."""
        return self.card.table()

    def verdict(self) -> str:
        """The verdict and its reason."""
        return str(self.card.verdict)

    def frame(self) -> pd.DataFrame:
        """One row per target."""
        return self.card.rows.drop(columns=["client", "group"], errors="ignore")

    def figure(self) -> Figure:
        """The main figure.

        Raises:
            IncompatibleError: there is nothing to draw.
        """
        figures = self.trial.figures(self.outcome, self.card)
        if not figures:
            raise IncompatibleError("There is nothing to draw: no image of 1 or 3 channels.")
        return next(iter(figures.values()))

    def __repr__(self) -> str:
        return f"ModuleResult({self._title()}: {self.verdict()})"

    def __str__(self) -> str:
        table = pd.DataFrame(self.table()).to_string(index=False)
        return "\n".join([self._title(), table, self.verdict(), *self.notes])

    def _repr_html_(self) -> str:
        table = pd.DataFrame(self.table()).to_html(index=False, border=0)
        said = "".join(f"<p>{html.escape(text)}</p>" for text in (self.verdict(), *self.notes))
        return (
            f"<div><strong>{html.escape(self._title())}</strong>{table}{said}"
            f"{self._picture()}{self._link()}</div>"
        )

    def _picture(self) -> str:
        """The main figure as an element of HTML; nothing where there is none."""
        figures = self.trial.figures(self.outcome, self.card)
        if not figures:
            return ""
        held = io.BytesIO()
        next(iter(figures.values())).savefig(held, format="png", bbox_inches="tight", dpi=100)
        data = base64.b64encode(held.getvalue()).decode("ascii")
        alt = html.escape(f"{self._title()}: {self.verdict()}")
        return f'<img alt="{alt}" src="data:image/png;base64,{data}">'

    def _link(self) -> str:
        """A link to the page, where results were written."""
        if self.written is None:
            return "<p>Give folder= to write the page with every target.</p>"
        page = self.written.folder / "report.html"
        shown = html.escape(str(page))
        return f'<p><a href="{html.escape(quote(page.as_posix()))}">{shown}</a></p>'

    def _title(self) -> str:
        return f"{self.trial.settings.attack.name} on {self.trial.kind} of {self.trial.run.name}"


def attack_module(
    module: nn.Module,
    *,
    representations: Tensor | None = None,
    prototypes: Tensor | None = None,
    gradient: Mapping[str, Tensor] | Sequence[Tensor] | None = None,
    labels: Labels | None = None,
    image_shape: Sequence[int] | None = None,
    truth: Tensor | None = None,
    truth_labels: Labels | None = None,
    public: Tensor | None = None,
    public_labels: Labels | None = None,
    images: int | None = None,
    classes: int | None = None,
    attack: str | Mapping[str, Any] | Attack | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    seed: int = 0,
    device: str | torch.device = "auto",
    isolation: str = AUTO,
    folder: str | Path | None = None,
    report: Report = silent,
) -> ModuleResult:
    """Attack a module and what was computed with it; score the answers where truth is given.

    Exactly one of `representations`, `prototypes` and `gradient` is given. The attacker holds it,
    the module, and public images where they are given. A copy of the module is attacked: on the
    CPU or `device`, in evaluation mode (BatchNorm uses its running statistics, dropout is off),
    with its hooks. The module itself is left as it is.

    Args:
        module: images in [0, 1] (n, C, H, W) to representations (n, d); for a gradient to logits
            (n, classes). Normalisation belongs inside.
        representations: (n, d), one of each image.
        prototypes: (m, d), the mean representation of each class.
        gradient: of the mean cross-entropy of a batch: by parameter name, or in the order of
            ``module.parameters()``, as `torch.autograd.grad` returns it. Parameters that took
            none (frozen, unused, None) may be left out: they are not compared.
        labels: classes (n,) of the representations or (m,) of the prototypes, which need them; of
            a gradient (images,) those of its batch, which tell its size and are not handed over.
        image_shape: (C, H, W) sought; left out: that of `truth` or of `public`.
        truth: the true images: image i made representation i; all of them made the gradient.
            (n, C, H, W), floats in [0, 1] or bytes 0..255; with channels last they are turned, and
            a note says so.
        truth_labels: their classes; of prototypes they say which image made which.
        public: public images, which are none of the true ones: half of them make the floors, the
            other half is given to the attacker. Without truth the attacker gets all.
        public_labels: their classes, for floors by class.
        images: number of images behind the gradient, where neither labels nor truth tell it.
        classes: number of classes, where the labels do not show it.
        attack: a name, a name with settings, or an attack such as ``DeepImagePrior(steps=300)``;
            left out: ``dip``, or ``inverting-gradients`` on a gradient.
        metrics: names of metrics.
        seed: of the attack and the floors.
        device: auto, cpu, cuda or cuda:N.
        isolation: auto or same-process; a module that is given as an object cannot be handed to
            another process.
        folder: an empty folder for results, figures and page; left out: nothing is written.
        report: called with an `Event` now and then.

    Raises:
        ConfigError: an unknown name or setting, or not exactly one thing to attack.
        IncompatibleError: shapes, ranges or knowledge that do not fit each other, and images that
            can be read in two ways, such as uint8 of 0 and 1.
        MissingInputError: truth without public images.
    """
    vectors = {"representations": representations, "prototypes": prototypes}
    things = {**vectors, "gradient": gradient}
    handed = [name for name, value in things.items() if value is not None]
    if len(handed) != 1:
        raise ConfigError(
            f"Give one of representations=, prototypes= and gradient=; got "
            f"{', '.join(handed) or 'none'}."
        )
    (what,) = handed
    if not isinstance(module, nn.Module):
        raise ConfigError(f"The module is a {type(module).__name__}; needed is an nn.Module.")
    true, others, read = read_images(truth, public, image_shape)
    shape = shape_of(image_shape, true, others)
    copied = frozen_copies({OWN: module})
    settle(copied[OWN], shape)
    width = output_width(
        copied[OWN], shape, what=type(module).__name__, option="image_shape=(C, H, W)"
    )
    known = None if labels is None else as_labels(labels, "labels")
    named = None if truth_labels is None else as_labels(truth_labels, "truth_labels")
    number = 0
    artifact: Artifact
    seen: list[str] = []
    masked = False
    if gradient is not None:
        number = _count(images, known, true)
        check_classes(width, {"labels": known, "truth_labels": named})
        artifact, seen, masked = read_gradient(gradient, Layout.of(module))
    else:
        rows = as_rows(vectors[what], what)
        if known is None and what == "prototypes":
            raise IncompatibleError(
                "Prototypes need the class of each.", next_step="Give labels=, one per prototype."
            )
        if known is not None and len(known) != len(rows):
            raise IncompatibleError(f"{len(known)} labels were given for {len(rows)} {what}.")
        kind = Prototypes if what == "prototypes" else Representations
        artifact = kind(rows, torch.full((len(rows),), -1) if known is None else known)
    if named is None and what != "prototypes":
        named = known
    settings = _settings(attack, what, metrics, seed, number or len(rows))
    upload = Upload(*OWN, (artifact,))
    by_class = named is not None and public_labels is not None
    given = ExternalUploads(
        name=f"a {type(module).__name__}",
        system=f"a {type(module).__name__}",
        image_shape=shape,
        num_classes=width if number else max(classes or 0, classes_seen([upload])),
        uploads=(upload,),
        threat=_threat(what),
        extractors=lambda keys: {} if number else copied,
        models=copied if number else {},
        images_per_target=number,
        statistics=statistics_of(module) if number else "",
        truth=None if true is None else partial(truth_for, true, named, by_class, number),
        true_labels=named,
        public=None if others is None else public_for(others, public_labels, by_class, true),
        unit="gradient" if number else what.removesuffix("s"),
        notes=(*notes_of(module, copied[OWN], shape, what), *read),
        findings=Findings(tuple(seen)),
        assumed=(MASKED,) if masked else (),
        supported=_supported_words(what),
        truth_needs_public="Give some: public=images, none of which is among the true ones.",
    )
    settings = normalising_as(given, settings)
    trial = prepare_external(given, settings)
    return _attack_in_process(
        trial, settings, choose_device(str(device)), isolation, folder, report
    )


def _attack_in_process(
    trial: Trial,
    settings: AttackSettings,
    device: torch.device,
    isolation: str,
    folder: str | Path | None,
    report: Report,
) -> ModuleResult:
    """Attack, in memory or into a folder."""
    written, place = None, None if folder is None else Path(folder)
    if place is not None:
        if place.is_dir() and any(place.iterdir()):
            raise ConfigError(
                f"The folder {place} holds something already.", next_step="Give another folder=."
            )
        written = attack_into(
            place, settings, lambda: trial, device=device, report=report, isolation=isolation
        )
        outcome, card, how = written.outcome, written.card, str(written.record["isolation"])
    else:
        choose_isolation(isolation, device)
        context = Context(trial.attack_seed, device, report)
        played = run_attack(
            settings.attack,
            trial.observation,
            context,
            outcome=Reconstruction,
            isolation=isolation,
        )
        outcome, how = played.outcome, played.how
        card = trial.score(outcome)
    if not isinstance(outcome, Reconstruction):
        raise TypeError(f"expected images, not {outcome}")
    return ModuleResult(trial, outcome, card, how, written)


def _supported_words(what: str) -> str:
    kinds = (Representations, Prototypes, GradientState)
    return supporting_attacks(
        "a module of your own", kinds, _threat(what), answers=("images",), public="public="
    )


def _threat(what: str) -> ThreatModel:
    grants = {Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.HEAD}
    return ThreatModel(
        "own-module", frozenset(grants), "last", f"whoever holds the module and the {what}"
    )


def _count(images: int | None, labels: Tensor | None, truth: Tensor | None) -> int:
    """Number of images behind the gradient."""
    told = {
        "images=": images,
        "labels": None if labels is None else len(labels),
        "truth": None if truth is None else len(truth),
    }
    numbers = {name: count for name, count in told.items() if count is not None}
    if not numbers:
        raise IncompatibleError(
            "How many images made the gradient is not known.",
            next_step="Give labels=, or images=.",
        )
    if len(set(numbers.values())) > 1 or min(numbers.values()) < 1:
        said = ", ".join(f"{name} {count}" for name, count in numbers.items())
        raise IncompatibleError(f"The numbers of images behind the gradient differ: {said}.")
    return next(iter(numbers.values()))


def _settings(
    attack: str | Mapping[str, Any] | Attack | None,
    what: str,
    names: Sequence[str],
    seed: int,
    targets: int,
) -> AttackSettings:
    """The attack and the metrics."""
    problems: list[str] = []
    allow_module_paths(attack, names)
    if not isinstance(attack, Attack):
        usual = "inverting-gradients" if what == "gradient" else "dip"
        asked = {"name": attack} if isinstance(attack, str) else {"name": usual, **(attack or {})}
        attack = build_plugin(attacks, asked, at="attack", problems=problems)
    made: dict[str, Metric] = {}
    for name in names:
        metric = build_plugin(metric_registry, name, at=f"metrics.{name}", problems=problems)
        if metric is not None:
            made[name] = metric
    if problems or attack is None:
        raise ConfigError(*problems)
    if attack.answers != "images":
        raise IncompatibleError(
            f"Attack '{attack.name}' answers {attack.answers}; a module of your own is asked for "
            "images.",
            next_step=_supported_words(what),
        )
    target = "update" if what == "gradient" else what
    evaluation = Evaluation(targets=targets, seed=seed, metrics=tuple(names))
    return AttackSettings(target, attack, _threat(what), evaluation, made)
