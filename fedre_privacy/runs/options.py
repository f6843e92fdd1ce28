"""Options of trainings, attacks and what is built on them: each is declared here once.

Commands make their parsers of these declarations, `fedre_privacy.api` its signatures and
docstrings, and `values` the settings that options give. Classes say which go together; each option
has its type, what it is, and an `Option`. Nothing large is imported, so that help pages start
quickly.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from fedre_privacy.core.engines import IN_PROCESS, JOBS, training_engines
from fedre_privacy.core.events import Report, silent
from fedre_privacy.core.options import Constant, Option, option_in, options_of

if TYPE_CHECKING:
    from fedre_privacy.active_server.base import Steering
    from fedre_privacy.attacks.base import Attack
    from fedre_privacy.core.types import ThreatModel
    from fedre_privacy.data.base import Dataset
    from fedre_privacy.defenses.base import Defense
    from fedre_privacy.entanglement.base import Entanglement
    from fedre_privacy.eval.metrics.base import Metric
    from fedre_privacy.models.families import ModelSettings
    from fedre_privacy.partition.base import Partition
    from fedre_privacy.protocols.base import Protocol

Settings = Mapping[str, Any]
Name = str | Settings
"""A part by its name, or by its name and settings."""

TRAIN_SECTIONS = (
    "data",
    "partition",
    "model",
    "protocol",
    "train",
    "record",
    "defense",
    "coins",
    "steering",
)
ATTACK_SECTIONS = ("target", "attack", "threat", "eval", "metrics", "via")
"""Sections of the settings of a training and of an attack."""

REPEATED = {"action": "append", "default": []}

PROTOCOL = Annotated[
    "Name | Protocol | None", "what clients upload", Option("P", "fedre", "protocol")
]
DATASET = Annotated[
    "Name | Dataset | None",
    "digits, photos (both built in), npz:FILE, imagefolder:DIR, hf:NAME, tinyimagenet, cifar10, "
    "cifar100, mnist, fashion-mnist",
    Option("D[:PATH]", "digits", "data"),
]
ATTACK = Annotated[
    "Name | Attack | None",
    "attack to run, a name or module:Class",
    Option("A", "the usual one for the target, the upload and the threat model", "attack"),
]
TARGET = Annotated[
    str | None,
    Constant("fedre_privacy.runs.settings:target_names"),
    Option("K", "uploaded, what the protocol really sends", "target"),
]
ISOLATION = Annotated[
    str,
    "how far the attack is kept from the run: strict (a process in a sandbox, which opens nothing "
    "of the run; needs bubblewrap), process, same-process",
    Option(
        usual="the strictest that works here",
        default=Constant("fedre_privacy.sandbox.client:AUTO"),
        choices=Constant("fedre_privacy.sandbox.client:ISOLATION"),
    ),
]
SET = Annotated[
    Settings | None,
    "any setting by its dotted name, e.g. attack.steps=500; see --explain",
    Option("KEY=VALUE", parse={**REPEATED, "dest": "assign"}),
]
PRESET = Annotated[
    str | Sequence[str],
    "named settings, such as those of a published table; repeatable, later ones win, --config and "
    "options win over all",
    Option("NAME|list", default=(), parse=REPEATED),
]
RUNS = Annotated[
    str | Path,
    "folder of run folders",
    Option("DIR", default="runs", flag="--runs-dir", parse={"type": Path}),
]


class PlaceOptions(TypedDict, total=False):
    """Where something runs, and who hears of it."""

    device: Annotated[str, "auto, cpu, cuda or cuda:N", Option("D", default="auto")]
    report: Annotated[
        Report,
        "called with an `Event` now and then",
        Option(usual="silent", default=silent, flag="-"),
    ]


class LogOptions(TypedDict, total=False):
    """Which experiment trackers hear of it too."""

    log: Annotated[
        "str | Sequence[str]",
        "log losses, accuracy, matches and scores with tensorboard, mlflow, wandb or a logger of "
        "your own (module:Class); several by comma",
        Option("A,B", usual="with none", default=""),
    ]


class UnfinishedOptions(TypedDict, total=False):
    """What becomes of an earlier training or attack with the same settings."""

    resume: Annotated[bool, "go on with what was interrupted", Option(default=False)]
    restart: Annotated[
        bool, "remove what was made with these settings and begin anew", Option(default=False)
    ]


class SharedOptions(TypedDict, total=False):
    """What all trainings of a benchmark share, beside their data set."""

    data_dir: Annotated[
        str | Path | None, "where the data set's files are", Option("DIR", at="data.path")
    ]
    partition: Annotated[
        "Name | Partition | None",
        "pra:ALPHA (Dirichlet), pat:CLASSES, classes:CLASSES (random ones), longtail:IMBALANCE, "
        "iid",
        Option("NAME[:VALUE]", "pra:0.1", "partition"),
    ]
    models: Annotated[
        "Name | ModelSettings | None",
        "architecture, family (het10, cnn5, ...) or comma list",
        Option("M", "cnn4", "model"),
    ]
    clients: Annotated[int | None, "number of clients", Option("N", "10", "train.clients")]
    rounds: Annotated[int | None, "rounds", Option("T", "20", "train.rounds")]


class TrainingOptions(SharedOptions, total=False):
    """Everything that decides a training, beside its protocol and data set."""

    scheme: Annotated[
        "Name | Entanglement | None",
        "entanglement scheme of fedre, a name or module:Class",
        Option("S", "rap", "protocol.entanglement"),
    ]
    defense: Annotated[
        "Name | Defense | Sequence[Name | Defense] | None",
        "what clients do to their training or uploads, e.g. gaussian:clip=1,epsilon=8; "
        "repeatable, applied in order",
        Option("NAME[:KEY=VALUE,...]", at="defense", parse=REPEATED),
    ]
    steering: Annotated[
        "Name | Steering | Sequence[Name | Steering] | None",
        "what a malicious server does, e.g. null-head:rounds=1; repeatable, applied in order",
        Option("NAME[:KEY=VALUE,...]", "the server is honest", "steering", parse=REPEATED),
    ]
    seed: Annotated[int | None, "seed of the training", Option("N", "0", "train.seed")]
    secret: Annotated[
        str | Path | None,
        "what the split and all hidden draws follow from, so that nobody who guesses the seed can "
        "repeat them: 128 new bits, kept in the run's private/secret, or those of a file",
        Option("new|FILE", "the seed", "train.secret"),
    ]
    no_truth: Annotated[
        bool | None, "do not keep what is needed to score attacks", Option(at="record.truth")
    ]


class AttackOptions(TypedDict, total=False):
    """What decides an attack, beside the attack itself and its target."""

    threat: Annotated[
        "str | ThreatModel | None", "threat model", Option("T", "fedre-paper", "threat")
    ]
    attacker: Annotated[
        str | None,
        "whether the attack knows the run's defences",
        Option(
            usual="adaptive, it does",
            at="eval.attacker",
            choices=Constant("fedre_privacy.runs.settings:ATTACKERS"),
        ),
    ]
    targets: Annotated[int | None, "targets at most", Option("N", "24", "eval.targets")]
    round: Annotated[int | None, "round to attack", Option("R", "last", "eval.round")]
    metrics: Annotated[
        "Sequence[Name | Metric] | None",
        "metrics",
        Option("M,N", "psnr,ssim,mse255", "eval.metrics"),
    ]
    via: Annotated[
        "Name | Attack | None",
        "the attack that recovers prototypes for target recovered-prototypes",
        Option(usual="disentangle", at="via", flag="-"),
    ]


TRAINING = {
    "protocol": option_in(PROTOCOL),
    "dataset": option_in(DATASET),
    **options_of(TrainingOptions),
}
"""Options of a training by name."""
ATTACKING = {
    "attack": option_in(ATTACK),
    "target": option_in(TARGET),
    **options_of(AttackOptions),
}
"""Options of an attack by name."""


class TrainOptions(TrainingOptions, UnfinishedOptions, PlaceOptions, LogOptions, total=False):
    """What `api.train` takes by keyword."""

    set: SET
    preset: PRESET
    runs: RUNS
    engine: Annotated[
        str,
        "where clients are: in this process, each in its own on a Flower federation that is "
        "started on this machine, or in Flower's simulation; the run is the same",
        Option(
            default=IN_PROCESS,
            choices=training_engines,
        ),
    ]


class RecordedOptions(AttackOptions, UnfinishedOptions, PlaceOptions, LogOptions, total=False):
    """What `api.attack` takes by keyword."""

    set: SET
    isolation: ISOLATION


class AuditOptions(TypedDict, total=False):
    """What `api.audit` takes by keyword, beside the kind of audit."""

    unit: Annotated[
        str | None,
        "whose claim to test",
        Option(
            usual="a client's where there is one, else a record's",
            choices=Constant("fedre_privacy.defenses.base:UNITS"),
        ),
    ]
    trials: Annotated[int, "canary clients or canary records", Option("N", default=1000)]
    alpha: Annotated[
        float,
        "chance that the lower bound is above the truth",
        Option("A", default=Constant("fedre_privacy.eval.lower_bounds:ALPHA")),
    ]
    seed: Annotated[int, "seed of the coins", Option("S", default=0, flag="--audit-seed")]


class WorldsOptions(TypedDict, total=False):
    """Which shadow federations are trained, and how they are attacked."""

    worlds: Annotated[
        int,
        "federations to train; each is attacked with the others as shadows",
        Option("W", default=16),
    ]
    rates: Annotated[
        Sequence[float],
        "rates of false alarms to be shown; refused where they cannot be",
        Option(
            "F,F",
            "0.01,0.001, with a reason where one cannot",
            default=(),
            flag="--fpr",
            parse={"default": ""},
        ),
    ]
    attacks: Annotated[
        Sequence[str],
        "attack on signals of worlds; repeatable",
        Option(
            "NAME[:KEY=VALUE,...]",
            Constant("fedre_privacy.experiments.shadow_federations:usual"),
            default=(),
            flag="--attack",
            parse=REPEATED,
        ),
    ]


class MembershipOptions(WorldsOptions, PlaceOptions, total=False):
    """What `api.membership` takes by keyword."""


class ComparedOptions(TypedDict, total=False):
    """What a benchmark compares and where its jobs run, as options of the command too."""

    seeds: Annotated[
        Sequence[int] | None, "seeds of the trainings", Option("N,M", "SWEEP.yaml's, or 0,1,2")
    ]
    attacks: Annotated[
        "Sequence[Name | Attack] | None",
        "attack, attack@target or attack@target@threat; what is left out is usual for the attack; "
        "in Python also objects, or settings such as {'attack': DeepImagePrior(steps=300), "
        "'target': 'prototypes'}",
        Option("A,B", "those that fit the uploads"),
    ]
    targets: Annotated[int | None, "targets per attack", Option("N")]
    out: Annotated[
        str | Path | None,
        "folder of the benchmark",
        Option("DIR", "one in the runs' folder", parse={"type": Path}),
    ]
    jobs: Annotated[int, "jobs at once", Option("N", default=1)]
    engine: Annotated[
        str,
        "where jobs run",
        Option(default="local", choices=JOBS.keys),
    ]
    gpu_share: Annotated[
        float | None,
        "part of a GPU that a job takes with engine ray, above 0 and at most 1",
        Option("F", "1"),
    ]
    shard: Annotated[
        str | None,
        "one of N processes, on one machine or several, that share the folders: it begins with its "
        "own jobs, and ends when all are done",
        Option("I/N", "all jobs"),
    ]
    retry: Annotated[bool, "run failed jobs again", Option(default=False)]
    prune: Annotated[bool, "remove models and uploads of finished runs", Option(default=False)]


class BenchmarkOptions(SharedOptions, ComparedOptions, PlaceOptions, LogOptions, total=False):
    """What `api.benchmark` takes by keyword."""

    defenses: Annotated[
        "Sequence[Name | Defense]", "defences; they multiply the rest", Option(default=())
    ]
    attackers: Annotated[
        Sequence[str],
        "who attacks defended trainings: adaptive, naive or both, which also gives "
        "`BenchmarkResult.defences`",
        Option(default=("adaptive",)),
    ]
    steerings: Annotated[
        "Sequence[Name | Steering]",
        "steerings; they multiply the rest, none is an honest server",
        Option(default=()),
    ]
    vary: Annotated[
        Mapping[str, Settings] | None,
        "further variants, label to settings: {'one epoch': {'train': {'epochs': 1}}}",
        Option(),
    ]
    sweep: Annotated[
        str | Path | None,
        "a sweep file that says what to compare; what is given beside it wins over its own keys",
        Option(),
    ]
    dataset: DATASET
    set: SET
    runs: RUNS
