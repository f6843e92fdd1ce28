"""Options of trainings, attacks and what is built on them: each is declared here once.

Commands make their parsers of these declarations, `fedre_privacy.api` its signatures and
docstrings, and `values` the settings that options give. Classes say which go together. Nothing
large is imported, so that help pages start quickly.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from fedre_privacy.core.events import silent
from fedre_privacy.core.options import Constant, Option, option_in, options_of

if TYPE_CHECKING:
    from fedre_privacy.attacks.base import Attack
    from fedre_privacy.core.events import Report
    from fedre_privacy.core.types import ThreatModel
    from fedre_privacy.data.base import Dataset
    from fedre_privacy.defenses.base import Defense
    from fedre_privacy.entanglement.base import Entanglement
    from fedre_privacy.eval.metrics.base import Metric
    from fedre_privacy.models.families import ModelSettings
    from fedre_privacy.partition.base import Partition
    from fedre_privacy.protocols.base import Protocol
    from fedre_privacy.steering.base import Steering

Settings = Mapping[str, Any]
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
    "str | Settings | Protocol | None", Option("what clients upload", "P", "fedre", "protocol")
]
DATASET = Annotated[
    "str | Settings | Dataset | None",
    Option(
        "digits, photos (both built in), npz:FILE, imagefolder:DIR, tinyimagenet, cifar10, "
        "cifar100, mnist, fashion-mnist",
        "D[:PATH]",
        "digits",
        "data",
    ),
]
ATTACK = Annotated[
    "str | Settings | Attack | None",
    Option(
        "attack to run, a name or module:Class",
        "A",
        "the usual one for the target, the upload and the threat model",
        "attack",
    ),
]
TARGET = Annotated[
    str | None,
    Option(
        Constant("fedre_privacy.runs.settings:TARGETS"),
        "K",
        "uploaded, what the protocol really sends",
        "target",
    ),
]
ISOLATION = Annotated[
    str,
    Option(
        "how far the attack is kept from the run: strict (a process in a sandbox, which opens "
        "nothing of the run; needs bubblewrap), process, same-process",
        usual="the strictest that works here",
        default=Constant("fedre_privacy.sealed.door:AUTO"),
        parse={"choices": Constant("fedre_privacy.sealed.door:ISOLATION")},
    ),
]
SET = Annotated[
    "Settings | None",
    Option(
        "any setting by its dotted name, e.g. attack.steps=500; see --explain",
        "KEY=VALUE",
        parse={**REPEATED, "dest": "assign"},
    ),
]
PRESET = Annotated[
    str | Sequence[str],
    Option(
        "named settings, such as those of a published table; repeatable, later ones win, --config "
        "and options win over all",
        "NAME|list",
        default=(),
        parse=REPEATED,
    ),
]
RUNS = Annotated[
    str | Path,
    Option("folder of run folders", "DIR", default="runs", flag="--runs-dir", parse={"type": Path}),
]
DEVICE = Annotated[str, Option("auto, cpu, cuda or cuda:N", "D", default="auto")]
RESUME = Annotated[bool, Option("go on with what was interrupted", default=False)]
RESTART = Annotated[
    bool, Option("remove what was made with these settings and begin anew", default=False)
]
REPORT = Annotated[
    "Report",
    Option(
        "called with an `Event` now and then",
        usual="silent",
        default=silent,
        flag="-",
    ),
]


class SharedOptions(TypedDict, total=False):
    """What all trainings of a benchmark share, beside their data set."""

    data_dir: Annotated[
        str | Path | None, Option("where the data set's files are", "DIR", at="data.path")
    ]
    partition: Annotated[
        "str | Settings | Partition | None",
        Option(
            "pra:ALPHA (Dirichlet), pat:CLASSES, classes:CLASSES (random ones), "
            "longtail:IMBALANCE, iid",
            "NAME[:VALUE]",
            "pra:0.1",
            "partition",
        ),
    ]
    models: Annotated[
        "str | Settings | ModelSettings | None",
        Option("architecture, family (het10, cnn5, ...) or comma list", "M", "cnn4", "model"),
    ]
    clients: Annotated[int | None, Option("number of clients", "N", "10", "train.clients")]
    rounds: Annotated[int | None, Option("rounds", "T", "20", "train.rounds")]


class TrainingOptions(SharedOptions, total=False):
    """Everything that decides a training, beside its protocol and data set."""

    scheme: Annotated[
        "str | Settings | Entanglement | None",
        Option(
            "entanglement scheme of fedre, a name or module:Class",
            "S",
            "rap",
            "protocol.entanglement",
        ),
    ]
    defense: Annotated[
        "str | Settings | Defense | Sequence[str | Settings | Defense] | None",
        Option(
            "what clients do to their training or uploads, e.g. gaussian:clip=1,epsilon=8; "
            "repeatable, applied in order",
            "NAME[:KEY=VALUE,...]",
            at="defense",
            parse=REPEATED,
        ),
    ]
    steering: Annotated[
        "str | Settings | Steering | Sequence[str | Settings | Steering] | None",
        Option(
            "what a malicious server does, e.g. null-head:rounds=1; repeatable, applied in order",
            "NAME[:KEY=VALUE,...]",
            "the server is honest",
            "steering",
            parse=REPEATED,
        ),
    ]
    seed: Annotated[int | None, Option("seed of the training", "N", "0", "train.seed")]
    secret: Annotated[
        str | Path | None,
        Option(
            "what the split and all hidden draws follow from, so that nobody who guesses the seed "
            "can repeat them: 128 new bits, kept in the run's private/secret, or those of a file",
            "new|FILE",
            "the seed",
            "train.secret",
        ),
    ]
    no_truth: Annotated[
        bool | None,
        Option(
            "do not keep what is needed to score attacks",
            at="record.truth",
            parse={"action": "store_true"},
        ),
    ]


class AttackOptions(TypedDict, total=False):
    """What decides an attack, beside the attack itself and its target."""

    threat: Annotated[
        "str | ThreatModel | None", Option("threat model", "T", "fedre-paper", "threat")
    ]
    attacker: Annotated[
        str | None,
        Option(
            "whether the attack knows the run's defences",
            usual="adaptive, it does",
            at="eval.attacker",
            parse={"choices": Constant("fedre_privacy.runs.settings:ATTACKERS")},
        ),
    ]
    targets: Annotated[int | None, Option("targets at most", "N", "24", "eval.targets")]
    round: Annotated[int | None, Option("round to attack", "R", "last", "eval.round")]
    metrics: Annotated[
        "Sequence[str | Settings | Metric] | None",
        Option("metrics", "M,N", "psnr,ssim,mse255", "eval.metrics"),
    ]
    via: Annotated[
        "str | Settings | Attack | None",
        Option(
            "the attack that recovers prototypes for target recovered-prototypes",
            usual="disentangle",
            at="via",
            flag="-",
        ),
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


class TrainOptions(TrainingOptions, total=False):
    """What `api.train` takes by keyword."""

    set: SET
    preset: PRESET
    runs: RUNS
    device: DEVICE
    resume: RESUME
    restart: RESTART
    report: REPORT
    engine: Annotated[
        str,
        Option(
            "where clients are: in this process, each in its own on a Flower federation that is "
            "started on this machine, or in Flower's simulation; the run is the same",
            default=Constant("fedre_privacy.work:IN_PROCESS"),
            parse={"choices": Constant("fedre_privacy.work:ENGINES")},
        ),
    ]


class RecordedOptions(AttackOptions, total=False):
    """What `api.attack` takes by keyword."""

    set: SET
    device: DEVICE
    resume: RESUME
    restart: RESTART
    report: REPORT
    isolation: ISOLATION


class AuditOptions(TypedDict, total=False):
    """What `api.audit` takes by keyword, beside the kind of audit."""

    unit: Annotated[
        str | None,
        Option(
            "whose claim to test",
            usual="a client's where there is one, else a record's",
            parse={"choices": Constant("fedre_privacy.defenses.base:UNITS")},
        ),
    ]
    trials: Annotated[int, Option("canary clients or canary records", "N", default=1000)]
    alpha: Annotated[
        float,
        Option(
            "chance that the lower bound is above the truth",
            "A",
            default=Constant("fedre_privacy.eval.lower_bounds:ALPHA"),
        ),
    ]
    seed: Annotated[int, Option("seed of the coins", "S", default=0, flag="--audit-seed")]


class WorldsOptions(TypedDict, total=False):
    """Which shadow federations are trained, and how they are attacked."""

    worlds: Annotated[
        int,
        Option(
            "federations to train; each is attacked with the others as shadows", "W", default=16
        ),
    ]
    rates: Annotated[
        Sequence[float],
        Option(
            "rates of false alarms to be shown; refused where they cannot be",
            "F,F",
            "0.01,0.001, with a reason where one cannot",
            default=(),
            flag="--fpr",
            parse={"default": ""},
        ),
    ]
    attacks: Annotated[
        Sequence[str],
        Option(
            "attack on signals of worlds; repeatable",
            "NAME[:KEY=VALUE,...]",
            Constant("fedre_privacy.play.worlds:DEFAULT"),
            default=(),
            flag="--attack",
            parse=REPEATED,
        ),
    ]


class MembershipOptions(WorldsOptions, total=False):
    """What `api.membership` takes by keyword."""

    device: DEVICE
    report: REPORT


class ComparedOptions(TypedDict, total=False):
    """What a benchmark compares and where its jobs run, as options of the command too."""

    seeds: Annotated[
        Sequence[int] | None, Option("seeds of the trainings", "N,M", "SWEEP.yaml's, or 0,1,2")
    ]
    attacks: Annotated[
        "Sequence[str | Settings | Attack] | None",
        Option(
            "attack, attack@target or attack@target@threat; in Python also objects, or settings "
            "such as {'attack': DeepImagePrior(steps=300), 'target': 'prototypes'}",
            "A,B",
            "those that fit the uploads",
        ),
    ]
    targets: Annotated[int | None, Option("targets per attack", "N")]
    out: Annotated[
        str | Path | None,
        Option("folder of the benchmark", "DIR", "one in the runs' folder", parse={"type": Path}),
    ]
    jobs: Annotated[int, Option("jobs at once", "N", default=1)]
    engine: Annotated[
        str,
        Option(
            "where jobs run",
            default="local",
            parse={"choices": Constant("fedre_privacy.study.processes:ENGINES")},
        ),
    ]
    retry: Annotated[bool, Option("run failed jobs again", default=False)]
    prune: Annotated[bool, Option("remove models and uploads of finished runs", default=False)]


class BenchmarkOptions(SharedOptions, ComparedOptions, total=False):
    """What `api.benchmark` takes by keyword."""

    defenses: Annotated[
        "Sequence[str | Settings | Defense]", Option("defences; they multiply the rest", default=())
    ]
    steerings: Annotated[
        "Sequence[str | Settings | Steering]",
        Option("steerings; they multiply the rest, none is an honest server", default=()),
    ]
    vary: Annotated[
        "Mapping[str, Settings] | None",
        Option("further variants, label to settings: {'one epoch': {'train': {'epochs': 1}}}"),
    ]
    sweep: Annotated[
        str | Path | None,
        Option(
            "a sweep file in place of what to compare and attacks; seeds and targets given beside "
            "it win over its own"
        ),
    ]
    dataset: DATASET
    set: SET
    runs: RUNS
    device: DEVICE
    report: REPORT
