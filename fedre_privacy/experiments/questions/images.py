"""Which images went into an upload?"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.attacks.base import RECOVERED, can_read
from fedre_privacy.core import files
from fedre_privacy.core.artifacts import Artifact, ClassLogits
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction, RecoveredPrototypes
from fedre_privacy.core.types import Truth
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import Measure, Metric, PublicImages, Scores, evaluate
from fedre_privacy.eval.explained_share import CAUSES, WEAKNESSES
from fedre_privacy.eval.metrics.base import metrics as metric_registry
from fedre_privacy.eval.report import attack_trace, reconstruction_sheet
from fedre_privacy.eval.verdict import MIN_TARGETS
from fedre_privacy.experiments.declaration_check import departure
from fedre_privacy.experiments.fisher_bounds import Limit, unbiased_limit
from fedre_privacy.experiments.observation import held_out, observe
from fedre_privacy.experiments.recovered_rows import Recovered
from fedre_privacy.experiments.targets import TargetGroup, TargetSource
from fedre_privacy.experiments.truth_check import Agreement
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.local import represent
from fedre_privacy.protocols.blocks.state import Samples
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings
from fedre_privacy.sandbox.module_recipes import Modules

from .base import Question, Trial, explained_by, kinds_of, questions
from .prototype_recovery import recover

OUTPUTS = ClassLogits.kind
NOUNS = {
    "representations": "representation",
    "prototypes": "prototype",
    "entangled": "entangled upload",
    "recovered-prototypes": "recovered prototype",
    "update": "image",
    OUTPUTS: "class output",
}
"""What a target of each kind is called in a verdict."""

TARGET, TRUE, ACTUAL, CEILING = "target", "true", "actual", "ceiling"


@dataclass(frozen=True, eq=False)
class ImageTrial(Trial):
    """Targets in groups: what is attacked, and what stands beside it.

    Args:
        groups: "target"; where they apply "true" (the true prototypes behind recovered ones),
            "actual" (the real upload) and "ceiling" (single representations).
        recovered: what was worked out of the uploads, where that is attacked.
        unit: what ``truth.target_clients`` numbers, see `evaluate`.
        limit: what no unbiased attack can beat, or None where nothing of the kind holds.
        shared: extractors of the small models that recovered prototypes are of.
        agreement: whether the attacker's module makes the targets of the true images, where that
            was asked.
    """

    groups: dict[str, TargetGroup] = field(default_factory=dict)
    public: PublicImages = field(kw_only=True)
    recovered: Recovered | None = None
    unit: str = "client"
    limit: Limit | None = None
    shared: Modules = field(default_factory=lambda: Modules({}))
    agreement: Agreement | None = None

    def lines(self) -> dict[str, str]:
        lines = super().lines()
        if self.agreement is not None:
            lines["Truth"] = self.agreement.says()
        if self.run.bound and not self.counterfactual:
            limit = [] if self.limit is None else [self.limit.says()]
            lines["Bound"] = "; ".join([self.run.bound, *limit])
        if self.recovered is not None and self.settings.via is not None:
            lines["Target"] += f" by {self.settings.via.name}"
            if self.shared:
                lines["Target"] += ", those of the small model that was sent"
            if self.recovered.notes:
                told, more = self.recovered.notes[:4], len(self.recovered.notes) - 4
                told = (*([self.departs] if self.departs else []), *told)
                lines["Note"] = "; ".join([*told, *([f"and {more} more"] if more > 0 else [])])
        if _worst(self.settings) and self.groups[TARGET].single:
            named, mark, rest = lines["Target"].partition("   ")
            alone = "those of one image alone, the worst case"
            among = "--set eval.fewest_first=false draws among all"
            lines["Target"] = f"{named}, {alone} ({among}){mark}{rest}"
        if not self.observation.images_per_target:
            channels, height, width = self.run.image_shape
            count, dim = len(self.groups[TARGET]), self.observation.target_rows()[0].shape[1]
            lines["Unknown"] = (
                f"{count} x {channels}x{height}x{width} values from {count} x {dim} observed"
            )
        return lines


@questions.register("images")
class ImagesQuestion(Question):
    """Recover the images behind representations, prototypes, entangled vectors or updates."""

    when_to_use = "can a private image be recovered? the default"
    simulates = True

    def kinds(self, protocol: Protocol, settings: AttackSettings) -> set[type[Artifact]]:
        """What is attacked of an upload: representations, or else parameters and gradients."""
        kinds = kinds_of(protocol, settings.target)
        if settings.target != "uploaded":
            return kinds
        rows = {kind for kind in kinds if kind.rows is not Artifact.rows}
        return rows or {kind for kind in kinds if kind.updates} or kinds

    def outcome(self) -> type[Reconstruction]:
        return Reconstruction

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> ImageTrial:
        """Choose targets and build the observation.

        Raises:
            MissingInputError: the run lacks a round, an extractor, or its truth.
        """
        evaluation = settings.evaluation
        source = TargetSource.asked(run, data, settings)
        public, aux = held_out(source, evaluation.public)
        for metric in settings.metrics.values():
            metric.check(run.image_shape)
        recovered = None
        if settings.target == RECOVERED:
            recovered = recover(run, settings, source, aux)
        if settings.target == "update" or self._only_updates(run, settings, source):
            group, per_target = source.updates(
                evaluation.targets,
                evaluation.per_update,
                max_images=evaluation.max_images,
                fewest_first=bool(evaluation.fewest_first),
            )
            groups, kind = {TARGET: group}, "update"
        else:
            kind, per_target = source.kind_of(settings.target), 0
            groups = self._groups(source, settings, kind, recovered)
        targets = [upload for group in groups.values() for upload in group.uploads]
        observation = observe(source, settings, targets, aux, images_per_target=per_target)
        return ImageTrial.of(
            source,
            settings,
            observation,
            kind,
            groups[TARGET].counterfactual,
            groups=groups,
            public=public,
            recovered=recovered,
            limit=unbiased_limit(run, groups[TARGET], observation.uploads),
            shared=source.shared if recovered is not None else Modules({}),
            departs="" if groups[TARGET].counterfactual else departure(source),
        )

    @staticmethod
    def _only_updates(run: Run, settings: AttackSettings, source: TargetSource) -> bool:
        uploads = run.settings.protocol.uploads
        return (
            settings.target == "uploaded"
            and source.uploaded_kind() is None
            and any(kind.updates for kind in uploads)
        )

    @staticmethod
    def _groups(
        source: TargetSource,
        settings: AttackSettings,
        kind: str,
        recovered: Recovered | None,
    ) -> dict[str, TargetGroup]:
        evaluation = settings.evaluation
        groups = {
            TARGET: source.group(
                kind,
                evaluation.targets,
                max_images=evaluation.max_images,
                fewest_first=bool(evaluation.fewest_first),
                singles=MIN_TARGETS if _worst(settings) else 0,
                recovered=recovered,
            )
        }
        if isinstance(recovered, RecoveredPrototypes):
            groups[TRUE] = source.true_prototypes(groups[TARGET])
        actual = source.uploaded_kind()
        if actual is not None and actual != kind:
            groups[ACTUAL] = source.group(actual, evaluation.targets)
        # what was never sent, and is of one image, is that image's representation
        own = groups[TARGET].counterfactual and groups[TARGET].single
        if not own and actual != "representations" and evaluation.ceiling:
            groups[CEILING] = source.group(
                "representations", evaluation.ceiling, behind=kind == RECOVERED
            )
        return {
            name: group
            for name, group in groups.items()
            if name == TARGET
            or all(can_read(settings.attack, type(a)) for u in group.uploads for a in u.artifacts)
        }

    def score(self, trial: ImageTrial, outcome: Reconstruction) -> Scores:
        """Score the targets, and beside them the other groups; `rows` has the targets of all."""
        pieces = _pieces(trial, outcome)
        metrics = trial.settings.metrics
        scores = {
            name: _score(trial, group, pieces[name], metrics, _rule(trial))
            for name, group in trial.groups.items()
        }
        parts = []
        for name, one in scores.items():
            piece = pieces[name]
            columns = {
                "label_used": piece.labels,
                "spread": piece.spread,
                "confidence": piece.confidence,
                "certified": piece.certified,
            }
            told = {title: values.numpy() for title, values in columns.items() if len(values)}
            parts.append(one.rows.assign(group=name, **told))
        target = scores.pop(TARGET)
        titles = {TRUE: "true prototypes", CEILING: "single representation (ceiling)"}
        if ACTUAL in scores:
            titles[ACTUAL] = f"{trial.groups[ACTUAL].kind} upload (actual)"
        headings = {name: titles[name] for name in (TRUE, ACTUAL, CEILING) if name in scores}
        found = target.with_others(scores, headings)
        limit = () if trial.limit is None else (trial.limit.measure(),)
        notes = (f"{_mismatch(trial)}.",) if _mismatch(trial) else ()
        return dataclasses.replace(
            found,
            measures=(*found.measures, *limit),
            rows=pd.concat(parts, ignore_index=True),
            notes=notes if trial.recovered is None else (*notes, *trial.recovered.notes),
            by_rule=_by_rule(trial, pieces[TARGET]),
        )

    def figures(
        self, trial: ImageTrial, outcome: Reconstruction, card: Scores
    ) -> dict[str, Figure]:
        pieces = _pieces(trial, outcome)
        steps, trace = outcome.trace_steps, pieces[TARGET].trace
        title = f"{trial.settings.attack.name} on {trial.kind}"
        words = trial.lines()
        caption = (
            f"Run {trial.run.name}. Uploaded: {words['Uploaded']}. Attacker: {words['Attacker']}. "
            f"Attack {trial.settings.attack.name} on {words['Target'].split('   ')[0]}."
        )
        drawn: dict[str, Figure] = {}
        if pieces[TARGET].images.shape[1] in (1, 3):
            drawn["figure"] = reconstruction_sheet(
                card,
                pieces[TARGET].images,
                title=f"{title} ({trial.run.name})",
                caption=caption,
                extra=_columns(trial, pieces, card),
                counterfactual=trial.run.system if trial.counterfactual else None,
            )
        if bool((trace.isfinite() & (trace > 0)).any()):  # some attacks match nothing step by step
            drawn["trace"] = attack_trace(steps, trace, title=title)
        return drawn

    def write(self, folder: Path, trial: ImageTrial, outcome: Reconstruction) -> None:
        """Write the attack's own trace, and what it was fed where that was recovered first."""
        rec = _pieces(trial, outcome)[TARGET]
        files.write_csv(
            folder / "trace.csv",
            [
                {"step": int(step), **{f"target{i}": float(v) for i, v in enumerate(row)}}
                for step, row in zip(rec.trace_steps, rec.trace, strict=True)
            ],
        )
        if trial.recovered is not None:
            tensors, texts = trial.recovered.save()
            files.write_tensors(folder / "prototypes.safetensors", tensors, metadata=texts)


def _worst(settings: AttackSettings) -> bool:
    """Whether prototypes of one image are attacked in place of a draw, where there are enough."""
    evaluation = settings.evaluation
    free = evaluation.fewest_first is None and evaluation.max_images is None
    return free and settings.target == "prototypes"


def _columns(
    trial: ImageTrial, pieces: Mapping[str, Reconstruction], card: Scores
) -> dict[str, Tensor]:
    """Further columns of the sheet of reconstructions."""
    out: dict[str, Tensor] = {}
    if TRUE in pieces:
        out["from the true\nprototype"] = pieces[TRUE].images
    mine = trial.groups[TARGET]
    if ACTUAL in pieces and mine.single:
        kind = trial.groups[ACTUAL].kind
        nearest = pieces[ACTUAL].images[_partners(mine, trial.groups[ACTUAL])]
        out[f"from the client's\n{kind} upload"] = nearest
    if CEILING in pieces:
        partner = _partners(mine, trial.groups[CEILING])
        out |= {
            "single image,\nsame client": card.others[CEILING].originals[partner],
            "ceiling: from its\nrepresentation": pieces[CEILING].images[partner],
        }
    return out


def _partners(mine: TargetGroup, others: TargetGroup) -> Tensor:
    """For each target one of another group: of the same client, and of the same class if any is."""
    here, there = mine.truth, others.truth
    same_client = here.target_clients[:, None] == there.target_clients[None]
    same_label = here.target_labels[:, None] == there.target_labels[None]
    return (2 * same_client.int() + same_label.int()).argmax(1)


def _pieces(trial: ImageTrial, outcome: Reconstruction) -> dict[str, Reconstruction]:
    """The reconstructions of each group of targets."""
    sizes = [len(group) for group in trial.groups.values()]
    return dict(zip(trial.groups, _split_answers(outcome, sizes), strict=True))


def _split_answers(rec: Reconstruction, sizes: Sequence[int]) -> list[Reconstruction]:
    out, start = [], 0
    for size in sizes:
        rows = slice(start, start + size)
        parts = {
            name: getattr(rec, name)[rows]
            for name in (
                "images", "prior", "fit", "diverged", "labels", "spread", "confidence", "certified",
            )
        }  # fmt: skip
        out.append(dataclasses.replace(rec, trace=rec.trace[:, rows], **parts))
        start += size
    return out


def _rule(trial: ImageTrial) -> str:
    rule = trial.settings.evaluation.rule
    if rule != "auto":
        return rule
    return "assigned" if trial.observation.images_per_target else "best"


def _score(
    trial: ImageTrial,
    group: TargetGroup,
    rec: Reconstruction,
    metrics: Mapping[str, Metric],
    rule: str,
    *,
    explain: bool = True,
) -> Scores:
    evaluation = trial.settings.evaluation
    if rule == "nearest-rep" and group.kind == OUTPUTS:
        raise IncompatibleError(
            "Outputs of classes are no representations, so 'eval.rule=nearest-rep' has no meaning.",
            next_step="Use --set eval.rule=best or mean-image.",
        )
    nearest = _nearest_by_representation(trial, group) if rule == "nearest-rep" else None
    seen = dataclasses.replace(trial.observation, targets=group.uploads)
    return evaluate(
        rec,
        group.truth,
        trial.public,
        metrics=metrics,
        rule=rule,
        gallery=evaluation.gallery,
        seed=evaluation.seed,
        nearest=nearest,
        noun=NOUNS.get(group.kind, "target"),
        unit=trial.unit,
        explained=explained_by(trial.settings.attack, seen, rec) if explain else None,
        mismatch=_mismatch(trial),
        causes=_causes(trial),
    )


def _mismatch(trial: ImageTrial) -> str:
    """That the true images do not make the targets; empty where they do, or nobody asked."""
    return trial.agreement.says() if trial.agreement and not trial.agreement.agrees else ""


def _causes(trial: ImageTrial) -> str:
    """Why answers may not explain the targets; the package's own runs were made as they say."""
    made = trial.agreement.agrees if trial.agreement else isinstance(trial.run, Run)
    return WEAKNESSES if made else CAUSES


def _by_rule(trial: ImageTrial, rec: Reconstruction) -> dict[str, Measure]:
    """PSNR under every matching rule, for targets made of several images.

    The paper does not say which rule it used (FedRE, question 2), so all are recorded.
    """
    group = trial.groups[TARGET]
    if group.kind in ("representations", "update"):
        return {}
    psnr = {"psnr": metric_registry.get("psnr")()}
    rules = ("best", "mean-image", *(() if group.kind == OUTPUTS else ("nearest-rep",)))
    return {
        rule: _score(trial, group, rec, psnr, rule, explain=False).get("psnr") for rule in rules
    }


def _nearest_by_representation(trial: ImageTrial, group: TargetGroup) -> Tensor:
    """For each target the image of its support whose representation is closest to it."""
    truth: Truth = group.truth
    rows = torch.cat([r for u in group.uploads for a in u.artifacts if (r := a.rows()) is not None])
    reps = torch.empty(len(truth.images), rows.shape[1])
    for upload in group.uploads:
        where = (truth.clients == upload.client).nonzero().squeeze(1)
        key = (upload.client, upload.round)
        extractor = trial.shared[key] if key in trial.shared else trial.run.extractor(*key)
        images = (truth.images[where] * 255).round().to(torch.uint8)
        reps[where] = represent(extractor, Samples(images, truth.labels[where]))
    distance = torch.cdist(rows.double(), reps.double())
    member = torch.zeros_like(distance, dtype=torch.bool)
    member[truth.mixture.row, truth.mixture.sample] = truth.mixture.weight > 0
    return distance.masked_fill(~member, torch.inf).argmin(1)
