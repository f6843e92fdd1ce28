"""Settings of trainings and attacks: what they hold, how they are written, what they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedre_privacy.active_server.base import Steering, declaration
from fedre_privacy.attacks.base import RECOVERED, Attack, attacks
from fedre_privacy.core import files
from fedre_privacy.core.config import knob, modules_of, plain, plain_plugin
from fedre_privacy.core.registry import not_installed
from fedre_privacy.core.rng import derive
from fedre_privacy.core.types import ThreatModel
from fedre_privacy.data.base import Dataset
from fedre_privacy.defenses.base import Defense
from fedre_privacy.eval.matching import RULES
from fedre_privacy.eval.metrics.base import DEFAULT_METRICS, Metric
from fedre_privacy.models.families import HEAD as MODEL_HEAD
from fedre_privacy.models.families import PRIVATE, ModelSettings, members_of
from fedre_privacy.models.zoo import architectures
from fedre_privacy.partition.base import Partition
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.state import Training
from fedre_privacy.threats.base import threats

from .membership_game import MembershipGame
from .options import ATTACK_SECTIONS as ATTACK_SECTIONS
from .options import TRAIN_SECTIONS as TRAIN_SECTIONS

UPLOADS = ("uploaded", "representations", "prototypes", "entangled", RECOVERED, "update")
"""Targets that are what was uploaded, or a kind of it."""


def target_names() -> tuple[str, ...]:
    """What ``--target`` takes: what was uploaded, kinds of it, and what attacks are usual for."""
    kinds = map(attacks.get, attacks.names())
    usual = {target for kind in kinds for target in vars(kind).get("usual_for", ())}
    return (*UPLOADS, *sorted(usual - {*UPLOADS, "images"}))


ADAPTIVE, NAIVE = ATTACKERS = ("adaptive", "naive")


Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RecordSettings:
    """What a run keeps beside its uploads."""

    keep_every: int = knob(
        0,
        help="keep the extractors of every so many rounds; the last round's are always kept; 0: no "
        "others, or those of all rounds where attacks combine rounds and the models are small",
        unit="rounds",
        ge=0,
    )
    truth: bool = knob(True, help="keep what the evaluator needs to score attacks")
    keep_first: bool = knob(
        False, help="keep the extractors of the first round too, for attacks on it", later=True
    )

    rounds: tuple[int, ...] = knob(
        (),
        help="rounds whose uploads, broadcasts and extractors are kept beside the last's, where "
        "a record of all would fill the disk; none: the messages of all rounds",
        ge=1,
        later=True,
    )

    def keeps(self, round: int, last: int) -> bool:
        """Whether the extractors and the truth of a round are kept."""
        wanted = (self.keep_every and round % self.keep_every == 0) or round in self.rounds
        return bool(round == last or wanted or (round == 1 and self.keep_first))

    def records(self, round: int, last: int) -> bool:
        """Whether a round's messages are kept; those before and after all rounds always are."""
        between = 0 < round < last
        return not (self.rounds and between) or self.keeps(round, last)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is attacked and how it is scored."""

    targets: int = knob(24, help="targets to attack, spread over the clients", ge=1)
    ceiling: int = knob(
        8, help="single representations attacked beside other targets, as a ceiling; 0: none", ge=0
    )
    round: int | None = knob(
        None,
        help="round to attack; none: the last one, or the first where the attack says so",
        ge=1,
    )
    staleness: int = knob(
        0, help="age of the newest extractor that the attacker holds", unit="rounds", ge=0
    )
    attacker: str = knob(
        ADAPTIVE,
        help="adaptive attackers know the defences that clients declare, naive ones do not",
        choices=ATTACKERS,
    )
    rule: str = knob(
        "auto",
        help="how a target with several originals is matched; auto: assigned for the images of an "
        "update, best otherwise",
        choices=("auto", *RULES),
    )
    max_images: int | None = knob(
        None, help="attack only targets made of at most so many images", ge=1
    )
    fewest_first: bool | None = knob(
        None,
        help="attack the targets made of the fewest images in place of a random draw; none: under "
        "--target prototypes those of one image alone where there are 6, the worst case, else draw",
    )
    per_update: int = knob(
        4,
        help="images sought in each gradient or update, at most as many as made the smallest",
        ge=1,
    )
    candidates: int = knob(
        200,
        help="membership: training and other images asked about per client, of each; source: "
        "training images",
        ge=2,
    )
    metrics: tuple[str, ...] = knob(DEFAULT_METRICS, help="metrics to report")
    gallery: int = knob(100, help="images in an identification line-up", ge=2)
    public: int = knob(2000, help="held-out images that floors may use, at most", ge=1)
    seed: int = knob(0, help="seed of targets, attack and floors", ge=0)


@dataclass(frozen=True)
class TrainSettings:
    """Everything that decides a training run."""

    data: Dataset
    partition: Partition
    model: ModelSettings
    protocol: Protocol
    train: Training
    record: RecordSettings
    defense: tuple[Defense, ...] = ()
    """What clients do to their training and uploads, in order."""
    coins: MembershipGame | None = None
    """Who trains is decided by coins, of this world; none: each client's training share does."""
    steering: tuple[Steering, ...] = ()
    """What a malicious server does, in order; none: the server is honest."""

    def in_world(self, coins: MembershipGame) -> TrainSettings:
        """The settings of one world: the same partition, another seed for everything else."""
        own = self.partition
        seed = self.train.seed if own.seed is None else own.seed
        return replace(
            self,
            partition=replace(own, seed=seed),
            train=replace(self.train, seed=derive(self.train.seed, "world", index=coins.world)),
            coins=coins,
        )

    def plain(self) -> dict[str, Any]:
        """The settings as written to ``config.yaml``."""
        return {
            "data": plain_plugin(self.data),
            "partition": plain_plugin(self.partition),
            "model": plain(self.model),
            "protocol": plain_plugin(self.protocol),
            "train": plain(self.train),
            "record": plain(self.record),
            **({"defense": [plain_plugin(d) for d in self.defense]} if self.defense else {}),
            **({"coins": plain(self.coins)} if self.coins else {}),
            **({"steering": [plain_plugin(s) for s in self.steering]} if self.steering else {}),
        }

    def plugins(self) -> list[str]:
        """Modules of one's own that a command needs to read these settings from a file."""
        kinds = [architectures.get(name) for name in members_of(self.model.name)]
        parts = (self.data, self.partition, self.protocol, *self.defense, *self.steering)
        return not_installed({kind.__module__ for kind in kinds}.union(*map(modules_of, parts)))

    @property
    def keeps_small(self) -> bool:
        """Whether the models of all rounds are kept if they take little room (`Prepared.record`).

        So it is where attacks combine the uploads of several rounds, and nothing else is asked for.
        """
        own = self.record.keep_every or self.record.rounds or self.coins
        combined = any(kind.over_rounds for kind in self.protocol.uploads)
        return self.record.truth and not own and combined

    def keeping_all(self) -> RecordSettings:
        """What is kept where the models of all rounds are."""
        return replace(self.record, keep_every=1)

    @property
    def active(self) -> str:
        """The mark of a run whose server is not honest: ACTIVE SERVER (...); else empty."""
        return declaration(self.steering)

    @property
    def private_start(self) -> bool:
        """Whether each client draws its own initial weights, so that nobody else knows them."""
        return self.model.init == PRIVATE

    @property
    def public_extractors(self) -> bool:
        """Whether clients' extractors are public: frozen, with published weights."""
        names = members_of(self.model.name)
        published = all(architectures.get(name).pretrained for name in names)
        return self.model.trainable == MODEL_HEAD or (published and not self.protocol.trains())

    @property
    def unseen(self) -> str:
        """Why nobody can simulate the local training; empty: it can be (see `Protocol.unseen`)."""
        plain = (
            "trained with momentum, weight decay or augmentation, and attacks know plain SGD on "
            "the images themselves alone"
        )
        return self.protocol.unseen or ("" if self.train.plain_sgd else plain)

    @property
    def run_name(self) -> str:
        """``protocol-dataset-hash``: equal settings name the same run."""
        digest = files.settings_hash(self.plain())
        return f"{self.protocol.name}-{self.data.name}-{digest}".replace(":", ".")


@dataclass(frozen=True)
class AttackSettings:
    """Everything that decides an attack on a run."""

    target: str
    attack: Attack
    threat: ThreatModel
    evaluation: Evaluation
    metrics: Mapping[str, Metric]
    via: Attack | None = None
    """The attack that recovers the prototypes which are then attacked."""

    @property
    def earliest(self) -> bool:
        """Whether the first recorded round is attacked where none is asked for."""
        return self.attack.earliest and self.via is None

    def plain(self) -> dict[str, Any]:
        """The settings as written to ``config.yaml``."""
        return {
            "target": self.target,
            "attack": plain_plugin(self.attack),
            "threat": self.threat.name,
            "eval": plain(self.evaluation),
            "metrics": {name: plain(metric) for name, metric in self.metrics.items()},
            **({"via": plain_plugin(self.via)} if self.via is not None else {}),
        }

    def plugins(self) -> list[str]:
        """Modules of one's own that a command needs to read these settings from a file."""
        parts = [self.attack, *self.metrics.values(), *([] if self.via is None else [self.via])]
        known = self.threat.name in threats.names()
        origin = {threats.origin(self.threat.name).partition(":")[0]} if known else set()
        return not_installed(origin.union(*map(modules_of, parts)))

    @property
    def folder_name(self) -> str:
        """``attack-target-hash``."""
        digest = files.settings_hash(self.plain())[:6]
        return f"{self.attack.name}-{self.target}-{digest}".replace(":", ".")
