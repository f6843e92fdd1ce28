"""Membership in worlds: shadow federations trained by the same loop, each attacked in its turn.

Every world is trained, the signals of its uploads are kept, and its run is removed. Then each world
is the target once and the others are its shadows. Attacks on signals never see the target's coins;
other attacks on membership are given the observation of the world, as for a recorded run.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack, Context, attacks, can_read, needed_for
from fedre_privacy.attacks.shadow_attacks.base import ShadowAttack, ShadowSignals, shadow_attacks
from fedre_privacy.attacks.shadow_attacks.signals import confidences
from fedre_privacy.core import files
from fedre_privacy.core.config import build_plugin
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    IncompatibleError,
    unknown_name,
)
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.core.lock import lock_folder, remove_temporaries
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.rng import derive
from fedre_privacy.core.types import Candidates, Knowledge
from fedre_privacy.core.units import human_seconds, plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import PublicImages
from fedre_privacy.eval.shadow_scores import check_rates
from fedre_privacy.runs.membership_game import NULL, MembershipGame, Slots, draw_coins, draw_slots
from fedre_privacy.runs.preparation import prepare, shared_out
from fedre_privacy.runs.settings import AttackSettings, Evaluation, TrainSettings
from fedre_privacy.runs.training import train
from fedre_privacy.sandbox.client import AUTO, run_attack, warm
from fedre_privacy.threats.base import threats

from .compatibility import check_ahead
from .observation import observe
from .questions.base import only_kinds
from .questions.membership import granted_model
from .targets import TargetSource

THREAT = "strong"
SCORES = "scores/"
"""Before the names of attacks in the files of worlds."""


@dataclass(frozen=True)
class ShadowFederationPlan:
    """What is trained and attacked.

    Args:
        training: the federation, without coins.
        coins: how slots are chosen and coins tossed; the number of the world plays no part.
        worlds: how many federations; each is attacked with the others as shadows.
        rounds: uploads of so many rounds are looked at, evenly spread, the last among them.
        chosen: attacks on signals by the name that tables show.
    """

    training: TrainSettings
    coins: MembershipGame
    worlds: int
    rounds: int
    chosen: Mapping[str, ShadowAttack]
    rates: tuple[float, ...]

    def world(self, index: int) -> TrainSettings:
        """The settings of one world."""
        made = self.training.in_world(dataclasses.replace(self.coins, world=index))
        every = max(1, made.train.rounds // self.rounds)
        return dataclasses.replace(
            made, record=dataclasses.replace(made.record, keep_every=every, truth=True)
        )

    @property
    def looked_at(self) -> list[int]:
        """The rounds whose uploads are attacked, ascending."""
        last = self.training.train.rounds
        every = max(1, last // self.rounds)
        return [r for r in range(1, last + 1) if r % every == 0 or r == last]

    @cached_property
    def reads_models(self) -> bool:
        """Whether uploads are models, so that signals of worlds exist."""
        return self._fits(_reader())

    @cached_property
    def direct(self) -> dict[str, Attack]:
        """Attacks on membership that need no shadows and read what is uploaded, by name."""
        return {
            name: attack for name, attack in _membership_attacks().items() if self._fits(attack)
        }

    @property
    def grants_models(self) -> bool:
        """Whether uploads are read with clients' own extractors, which tell members themselves."""
        return any(
            Knowledge.EXTRACTOR in needed_for(one, {kind})
            for one in (*self.direct.values(), _reader())
            for kind in self.training.protocol.uploads
            if can_read(one, kind)
        )

    def settings(self, attack: Attack, round: int | None = None) -> AttackSettings:
        """Of an attack on the uploads of a round, or of the last one."""
        evaluation = Evaluation(round=round, gallery=2)
        return AttackSettings("membership", attack, threats.get(THREAT), evaluation, {})

    def _fits(self, attack: Attack) -> bool:
        if not any(can_read(attack, kind) for kind in self.training.protocol.uploads):
            return False
        try:
            check_ahead(self.world(0), self.settings(attack))
        except IncompatibleError:
            return False
        return True

    @property
    def folder_name(self) -> str:
        """``worlds-protocol-dataset-hash``: equal trainings and coins share their worlds."""
        return f"worlds-{self.world(0).run_name}"


@dataclass(frozen=True, eq=False)
class ShadowScores:
    """Scores of every attack in every world, and what only the evaluator knows.

    Shape: scores name to (W, n); coins (W, n) bool; accuracy (W,); model (W, n) what clients'
    models tell without the uploads, where the attacker is granted them, else None.
    """

    plan: ShadowFederationPlan
    folder: Path
    slots: Slots
    images: Tensor
    coins: Tensor
    scores: Mapping[str, Tensor]
    accuracy: Tensor
    seconds: float
    model: Tensor | None = None


def shadow_attack(text: str) -> ShadowAttack:
    """An attack on signals from ``name`` or ``name:setting=value,...``.

    Raises:
        ConfigError: the name or a setting is unknown.
    """
    name, _, tail = text.partition(":")
    if name not in shadow_attacks.names():
        raise ConfigError(unknown_name("shadow attack", name, shadow_attacks.names()))
    odd = [part for part in tail.split(",") if tail and "=" not in part]
    if odd:
        raise ConfigError(f"'{odd[0]}' in '{text}' is no setting; write setting=value.")
    given = dict(part.split("=", 1) for part in tail.split(",") if part)
    problems: list[str] = []
    made = build_plugin(shadow_attacks, {"name": name, **given}, at=name, problems=problems)
    if made is None:
        raise ConfigError(*problems)
    return made


def plan_shadow_federations(
    training: TrainSettings,
    *,
    worlds: int,
    coins: MembershipGame | None = None,
    rounds: int = 4,
    chosen: Sequence[str] = (),
    rates: Sequence[float] = (),
) -> ShadowFederationPlan:
    """Check everything that can be checked before a world is trained.

    Args:
        chosen: attacks on worlds; none: `usual`, of which those that combine other attacks alone
            where uploads are no models, if there are worlds enough.
        rates: of false alarms that are asked for; none: 1 % and 0.1 %, with a reason where one
            cannot be shown.

    Raises:
        ConfigError: too few worlds, an unknown attack, or a rate that cannot be shown.
        IncompatibleError: nothing that the protocol uploads can be asked about membership.
    """
    if worlds < 2:
        raise ConfigError(f"--worlds is {worlds}; it must be at least 2.")
    if rounds < 1:
        raise ConfigError(f"--attack-rounds is {rounds}; it must be at least 1.")
    if not training.record.truth:
        raise ConfigError("Worlds are scored by their coins; leave --no-truth out.")
    wished = {text: shadow_attack(text) for text in chosen}
    shown = tuple(rates) or (0.01, 0.001)
    plan = ShadowFederationPlan(training, coins or MembershipGame(), worlds, rounds, wished, shown)
    if plan.reads_models:
        if not wished:
            plan = dataclasses.replace(plan, chosen={t: shadow_attack(t) for t in usual()})
        _check_shadows(plan)
    elif plan.direct and all(one.combines for one in wished.values()):
        if not wished:
            stacks = {t: one for t in usual() if (one := shadow_attack(t)).combines}
            fits = {t: one for t, one in stacks.items() if one.needs_shadows < worlds}
            plan = dataclasses.replace(plan, chosen=fits)
        _check_shadows(plan)
    else:
        kinds = training.protocol.uploads
        able = [
            one
            for one in _membership_attacks().values()
            if any(can_read(one, kind) for kind in kinds)
        ]
        refused = _reader() if wished or not able else able[0]
        check_ahead(plan.world(0), plan.settings(refused))
    if plan.coins.game == NULL:
        prepare(plan.world(0), torch.device("cpu"))  # refuses where it cannot be played
    if rates:
        data = training.data.load()
        slots = draw_slots(shared_out(plan.world(0), data), data.labels, plan.coins)
        check_rates(rates, worlds, len(slots))
    return plan


def _check_shadows(plan: ShadowFederationPlan) -> None:
    shadows = plan.worlds - 1
    short = {t: one.needs_shadows for t, one in plan.chosen.items() if one.needs_shadows > shadows}
    if short:
        raise ConfigError(
            f"{plural(plan.worlds, 'world')} leave each one {plural(shadows, 'shadow')}; "
            + ", ".join(f"{text} needs {needed}" for text, needed in short.items())
            + ".",
            next_step=f"Use --worlds {max(short.values()) + 1} or more, or name other attacks "
            "(--attack).",
        )


def _reader() -> Attack:
    """The attack that computes losses under uploads; where it can, signals of worlds exist."""
    return next(kind() for name in attacks.names() if (kind := attacks.get(name)).signals)


def _membership_attacks() -> dict[str, Attack]:
    """Attacks on membership by name, but for the one that signals are read with."""
    kinds = {name: attacks.get(name) for name in attacks.names()}
    asked = {n: k for n, k in kinds.items() if k.answers == "membership" and not k.signals}
    return {name: kind() for name, kind in asked.items()}


def usual() -> list[str]:
    """Attacks on signals that are run unless told which, in the order of the table."""
    kinds = map(shadow_attacks.get, shadow_attacks.names())
    return [text for _, text in sorted(one for kind in kinds for one in kind.usual.items())]


def run_shadow_federations(
    plan: ShadowFederationPlan,
    *,
    runs: Path = Path("runs"),
    device: torch.device = torch.device("cpu"),  # noqa: B008
    restart: bool = False,
    isolation: str = AUTO,
    report: Report = silent,
) -> ShadowScores:
    """Train the worlds that are not there yet, and attack each with the others as shadows.

    What is finished is kept in the folder of the plan, world by world, and shared by all attacks.

    Raises:
        InUseError: another process trains these worlds.
        DamagedInputError: kept worlds are of another state of the data.
        FedreError: of a training or an attack.
    """
    folder = runs / plan.folder_name
    with lock_folder(folder):
        if restart:
            for path in folder.glob("w*.safetensors"):
                path.unlink()
        remove_temporaries(folder)
        started = time.monotonic()
        data = plan.training.data.load()
        shares = shared_out(plan.world(0), data)
        slots = draw_slots(shares, data.labels, plan.coins)
        coins = torch.stack(
            [
                draw_coins(shares, len(slots), dataclasses.replace(plan.coins, world=w))
                for w in range(plan.worlds)
            ]
        )
        kept = []
        for index in range(plan.worlds):
            path = folder / f"w{index:04d}.safetensors"
            if not path.is_file():
                begun = time.monotonic()
                found = _train_shadow_federation(
                    plan, index, data, slots, folder, device, isolation, report
                )
                files.write_tensors(path, found, metadata={"data_sha256": data.sha256})
                took, left = time.monotonic() - begun, plan.worlds - index - 1
                if left:
                    report(
                        Event(
                            "note",
                            {
                                "text": f"world {index + 1} of {plan.worlds} took "
                                f"{human_seconds(took)}; about {human_seconds(took * left)} to go"
                            },
                        )
                    )
            elif files.read_metadata(path).get("data_sha256") != data.sha256:
                raise DamagedInputError(
                    f"{path} was made from another state of the data set '{data.name}'.",
                    next_step="Restore the data, or train the worlds anew with --restart.",
                )
            kept.append(files.read_tensors(path))
        scores = {}
        for text, attack in plan.chosen.items():
            scores[text] = leave_one_out(attack, kept, coins, slots)
        direct = [name for name in kept[0] if name.startswith(SCORES)]
        for name in direct:
            scores[name.removeprefix(SCORES)] = torch.stack([one[name] for one in kept])
        accuracy = torch.stack([one["accuracy"] for one in kept])
        images = data.floats(slots.one)
        model = torch.stack([one["model"] for one in kept]) if "model" in kept[0] else None
        seconds = time.monotonic() - started
        return ShadowScores(plan, folder, slots, images, coins, scores, accuracy, seconds, model)


def leave_one_out(
    attack: ShadowAttack, kept: Sequence[Mapping[str, Tensor]], coins: Tensor, slots: Slots
) -> Tensor:
    """Scores (W, n): each world is the target once, and the others its shadows.

    Args:
        kept: signals of each world. coins: (W, n).
    """
    none = torch.zeros(0, len(set(slots.clients.tolist())), len(slots), dtype=torch.float64)
    sent = torch.stack([one.get("sent", none) for one in kept])
    scores = torch.stack([_score_rows(one, len(slots)) for one in kept])
    out = []
    for world, own in enumerate(kept):
        others = torch.arange(len(kept)) != world
        view = ShadowSignals(
            sent[world], own.get("before", none[:, 0]), sent[others], coins[others],
            slots.clients, slots.labels, scores[world], scores[others],
        )  # fmt: skip
        out.append(attack.score(view))
    return torch.stack(out)


def _score_rows(kept: Mapping[str, Tensor], slots: int) -> Tensor:
    """Scores (A, n) of the attacks on a world that assume nothing, and of the granted model."""
    rows = [
        value.double()
        for name, value in sorted(kept.items())
        if name.startswith(SCORES) and not attacks.get(name.removeprefix(SCORES)).assumes
    ]
    rows += [kept["model"].double()] if "model" in kept else []
    return torch.stack(rows) if rows else torch.zeros(0, slots, dtype=torch.float64)


def _train_shadow_federation(
    plan: ShadowFederationPlan,
    index: int,
    data: ImageData,
    slots: Slots,
    folder: Path,
    device: torch.device,
    isolation: str,
    report: Report,
) -> dict[str, Tensor]:
    """Train one world and return its signals; the run is removed."""
    settings = plan.world(index)
    if plan.direct:
        warm(isolation, device, [folder, *settings.data.sources()])
    prepared = prepare(settings, device)
    run = train(
        settings, runs=folder, device=device, restart=True, report=_quiet(report), prepared=prepared
    )
    candidates = Candidates(data.floats(slots.one), slots.labels, slots.clients)
    apart = torch.cat(slots.apart)
    aux = PublicImages(data.floats(apart), data.labels[apart])
    moment = f"acc_{settings.protocol.headline}"
    found = {"accuracy": torch.tensor(float(run.record["final"][moment] or torch.nan))}
    sources = {r: TargetSource(run, data, round=r, seed=0) for r in plan.looked_at}
    if plan.reads_models:
        attack = _reader()
        rows = []
        for round, source in sources.items():
            uploads = only_kinds(source.uploads.values(), set(attack.consumes))
            seen = observe(
                source, plan.settings(attack, round), uploads, aux, candidates=candidates
            )
            rows.append(confidences(seen, settings.train.clients, device))
        found["sent"] = torch.stack([sent for sent, _ in rows])
        found["before"] = torch.stack([before for _, before in rows])
    if plan.grants_models:
        alone = granted_model(sources[plan.looked_at[-1]], candidates)
        found["model"] = _standard(alone, slots.clients)
    for text, attack in plan.direct.items():
        kinds = {kind for kind in settings.protocol.uploads if can_read(attack, kind)}
        single = all(kind.updates for kind in kinds) and not attack.adds_rounds
        rounds = plan.looked_at if single else plan.looked_at[-1:]
        each = []
        for round in rounds:
            source = sources[round]
            uploads = only_kinds(source.uploads.values(), kinds)
            seen = observe(
                source, plan.settings(attack, round), uploads, aux, candidates=candidates
            )
            context = Context(seed=derive(source.attack_seed, text), device=device)
            answer = run_attack(
                attack, seen, context, outcome=MembershipScores, isolation=isolation,
                hidden=run.secrets(),
            ).outcome  # fmt: skip
            assert isinstance(answer, MembershipScores)
            each.append(_standard(answer.scores.double(), slots.clients))
        found[f"{SCORES}{text}"] = torch.stack(each).nanmean(0)
    shutil.rmtree(run.folder)
    return found


def _standard(scores: Tensor, clients: Tensor) -> Tensor:
    """Scores of each client less their mean, over their spread; no coin enters."""
    out = torch.full_like(scores, torch.nan)
    for client in clients.unique().tolist():
        mine = (clients == client) & scores.isfinite()
        if int(mine.sum()) > 1:
            own = scores[mine]
            out[mine] = (own - own.mean()) / own.std().clamp(min=1e-12)
    return out


def _quiet(report: Report) -> Report:
    """Pass on how far a training is, and not that it ended: there are many."""

    def listen(event: Event) -> None:
        if event.name == "train.round":
            report(event)

    return listen
