"""What the Attacker line says of an attack and a defence is what the attack does.

"Adaptive to" means that the answer is another one when the channel is withheld (`--attacker
naive`), "does not use" that it is the same to the last bit. Every built-in attack is asked on runs
under every built-in defence that its protocol can have.
"""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.core.artifacts import (
    ClassLogits,
    ClassStatistics,
    EntangledRep,
    GradientState,
    HeadState,
    MatrixBlocks,
    ModelState,
    Prototypes,
)
from fedre_privacy.core.channels import Channel, ClippingStep
from fedre_privacy.core.registry import allow_module_paths
from fedre_privacy.core.types import Knowledge, KnownDefense, Observation, Upload
from fedre_privacy.defenses.base import defenses
from fedre_privacy.experiments.adaptation import Adaptation, adaptations, sentence
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.questions.images import ImageTrial
from fedre_privacy.models.split import Normalise, SplitModel
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train
from fedre_privacy.sandbox.observation_files import pack, unpack
from fedre_privacy.threats.base import threats

BOUNDS = ("clip:norm=0.02", "clip:norm=0.02,where=representation")
NOISES = ("gaussian:clip=0.02,noise=0.5", "gaussian:clip=0.02,noise=0.5,unit=record")
ROWS = (
    *BOUNDS, *NOISES, "laplace:clip=0.02,epsilon=50", "mask:keep=0.5", "quantise:bits=1",
    "dp-sgd:clip=1,noise=1,delta=1e-3",
)  # fmt: skip
TRAINED = (
    "clip:norm=0.01", "gaussian:clip=0.01,noise=0.5", "laplace:clip=0.01,epsilon=50",
    "mask:keep=0.5", "prune:keep=0.3", "quantise:bits=2", "dp-sgd:clip=1,noise=1,delta=1e-3",
    "dp-mf:clip=1,noise=1,delta=1e-3",
)  # fmt: skip
LEARNT = (
    "nopeek", "adversarial-decoder", "information-bottleneck:strength=0.1", "shredder:scale=1",
    "cem:noise=1", "disco", "soteria", "mixup",
)  # fmt: skip
STATISTICS = (
    "shrink-covariance:share=0.5", "shrink-covariance:share=0.5,towards=diagonal",
    "minimum-count:count=4",
)  # fmt: skip
RUNS = {
    "fedgh": (*ROWS, *LEARNT),
    "fedre": (*ROWS, "label-smoothing", "scheme quantised", "scheme decoy", "scheme m-of-n"),
    "fedsgd": (*TRAINED, "secagg", "soteria", "mixup"),
    "fedavg": (*TRAINED, "secagg", "soteria"),
    "lg-fedavg": TRAINED,
    "fedral": TRAINED,
    "fedpft": (*STATISTICS, "statistics-noise:clip=0.05,noise=0.01"),
    "fedcgs": ("minimum-count:count=6",),
    "fd": (
        BOUNDS[0],
        NOISES[0],
        "laplace:clip=0.02,epsilon=50",
        "mask:keep=0.5",
        "quantise:bits=1",
    ),
}
"""Protocols whose uploads every attack reads some of, and what their clients do."""
QUICK = {
    "decoder": {"updates": 2, "width": 4, "views": 1, "stages": 1, "match_targets": False},
    "diffusion": {"updates": 2, "width": 4, "views": 1, "steps": 3, "samples": 1},
    "ensemble-kalman": {"members": 16, "steps": 1, "views": 1},
    "linear": {"views": 1},
    "shadow": {"views": 1, "shadows": 2, "tries": 2},
    "shadow-membership": {"shadows": 2, "tries": 2},
    "dip": {"steps": 3},
    "joint-disentangle": {"steps": 3, "views": 2},
    "mean": {
        "first": {"name": "linear", "views": 1, "victims": 0},
        "second": {"name": "ensemble-kalman", "members": 16, "steps": 1, "views": 1},
    },
    "pixel": {"steps": 3},
    "dlg": {"steps": 1, "inner": 3, "restarts": 1},
    "idlg": {"steps": 1, "inner": 3, "restarts": 1},
    "head": {"steps": 5},
    "fishing": {"steps": 3},
    "imprint": {"by": {"name": "linear", "views": 1}},
    "inverting-gradients": {"steps": 3},
    "update-inversion": {"steps": 3},
    "spear": {"by": "linear", "tries": 2048},
}
OFTEN = {("fedgh", "clip:norm=0.02"), ("fedre", "label-smoothing")}
"""Runs on which all attacks but the longest are asked in every test run; the others are slow."""
SENT = {
    "fedgh": Prototypes, "fedre": EntangledRep, "fedsgd": GradientState, "fedavg": ModelState,
    "fedpft": ClassStatistics, "fedcgs": ClassStatistics,
    "lg-fedavg": HeadState, "fedral": MatrixBlocks, "fd": ClassLogits,
}  # fmt: skip
ELSEWHERE = {"analytic"}
"""No defence changes what it reads: networks of one kind."""
BY_LIKELIHOOD = {("disentangle", "quantise:bits=1"), ("unpool", "minimum-count:count=6")}
"""Here knowing adds ratios of noise to be tried, and on this run none of them is likelier; or the
number of samples behind a second moment, which is more than is tried."""


def readers(protocol):
    """Attacks that read what a protocol sends where clients train their extractors."""
    sent, found = SENT[protocol], [attacks.get(name) for name in attacks.names()]
    return [
        one.name for one in found
        if issubclass(sent, one.consumes)
        if Knowledge.FROZEN_EXTRACTOR not in one.needs_for.get(sent, ())
    ]  # fmt: skip


PAIRS = [
    pytest.param(
        protocol, given, name,
        id=f"{name}-{protocol}-{given}",
        marks=() if (protocol, given) in OFTEN and name != "property" else (pytest.mark.slow,),
    )
    for protocol, all_given in RUNS.items()
    for given in all_given
    for name in readers(protocol)
    if name not in ELSEWHERE
    if (name, given) not in BY_LIKELIHOOD
    if not (given == "secagg" and attacks.get(name).answers != "images")
]  # fmt: skip


@pytest.fixture(scope="module")
def defended(tiny, tmp_path_factory):
    """Make the run of a protocol under a defence, and for what an attack needs, once."""
    made = {}

    def run(protocol, given, name=""):
        steered = attacks.get(name).steered[:1] if name else ()
        if (protocol, given, steered) not in made:
            own = {
                "fedral": {"blocks": [2]},  # as wide as there are classes
                "fedpft": {"precision": "float32"},
            }.get(protocol, {})
            sections = {"protocol": {"name": protocol, **own}, "defense": [given]}
            if given.startswith("scheme "):
                scheme = {"name": given.removeprefix("scheme ")}
                sections = {"protocol": {"name": protocol, "entanglement": scheme}}
            settings = tiny(
                **sections, train={"rounds": 4, "clients": 3}, record={"keep_every": 1},
                steering=list(steered),
                partition={"name": "pra", "alpha": 0.2},
            )  # fmt: skip
            made[protocol, given, steered] = train(settings, runs=tmp_path_factory.mktemp("runs"))
        return made[protocol, given, steered]

    return run


def asked(run, name, *, attacker="adaptive", threat="strong", target=None, **settings):
    """An attack ready to be played on a run."""
    asks = attacks.get(name).answers
    if Knowledge.INITIAL_MODEL in attacks.get(name).needs:
        threat = "public-init"
    target = target or (asks if asks in ("labels", "membership") else "uploaded")
    values = {
        "attack": {"name": name, **QUICK.get(name, {}), **settings},
        "threat": threat,
        "target": target,
        "eval": {
            "targets": 3, "ceiling": 0, "per_update": 2, "candidates": 10, "attacker": attacker,
        },
    }  # fmt: skip
    return prepare_attack(run, resolve_attack(values, {}, []))


def answer(trial, observation):
    """What an attack returns, of images those of the targets and not of what stands beside them."""
    found = trial.settings.attack(observation, Context(seed=trial.attack_seed)).save()[0]
    if isinstance(trial, ImageTrial) and not trial.observation.images_per_target:
        return {"images": found["images"][: len(trial.groups["target"])]}
    return found


def same(one, other):
    return all(torch.equal(one[k].nan_to_num(), other[k].nan_to_num()) for k in one | other)


def told_truly(run, name, **settings):
    """Check what is said of an attack on a run, and return it."""
    trial = asked(run, name, **settings)
    *_, found = trial.adaptations()
    unaware = asked(run, name, attacker="naive", **settings).observation
    recovered = settings.get("target") == "recovered-prototypes"  # an aware attack's answers
    naive = replace(
        trial.observation,
        defenses=(),
        targets=trial.observation.targets if recovered else unaware.targets,
        uploads=trial.observation.uploads if recovered else unaware.uploads,
        rehearse=unaware.rehearse,
        extractors=unaware.extractors,
        models=unaware.models,
    )
    changes = not same(answer(trial, trial.observation), answer(trial, naive))
    assert changes == any(one.used for one in found), found
    assert sentence(found) in trial.lines()["Attacker"]
    return found


@pytest.mark.parametrize(("protocol", "given", "name"), PAIRS)
def test_the_attacker_line_is_true(protocol, given, name, defended):
    told_truly(defended(protocol, given, name), name)


def test_every_attack_and_every_defence_is_asked():
    pairs = [pair.values for pair in PAIRS]
    assert {name for _, _, name in pairs} | ELSEWHERE == set(attacks.names())
    assert {given.split(":")[0] for _, given, _ in pairs if "scheme" not in given} == set(
        defenses.names()
    )
    for protocol, sent in SENT.items():
        assert sent in protocols.get(protocol).uploads


CHOICES = [
    ("fedsgd", "clip:norm=0.01", "inverting-gradients", {"objective": "l2rel"}, True),
    ("fedsgd", "clip:norm=0.01", "inverting-gradients", {"objective": "cosine"}, False),
    ("fedsgd", "clip:norm=0.01", "head", {"method": "combined"}, True),
    ("fedsgd", "clip:norm=0.01", "head", {"method": "ratio"}, False),
    ("fedre", "label-smoothing", "labels", {"ignore_encoding": True}, False),
    ("fedre", "label-smoothing", "linear", {"match_targets": True}, True),
    ("fedre", "label-smoothing", "linear", {"match_targets": False}, False),
    pytest.param(
        "fedre", "label-smoothing", "dip", {"start": "linear"}, True, marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize(("protocol", "given", "name", "settings", "adapts"), CHOICES)
def test_settings_decide_too(protocol, given, name, settings, adapts, defended):
    (found,) = told_truly(defended(protocol, given), name, **settings)
    assert bool(found.used) == adapts


KNOWN = [
    ("fedre-paper", "average", "fedgh", "clip:norm=0.02"),  # no class means
    ("eavesdropper", "disentangle", "fedre", "mask:keep=0.5"),  # no class means
]


@pytest.mark.slow
@pytest.mark.parametrize(("threat", "name", "protocol", "given"), KNOWN)
def test_what_is_known_decides_too(threat, name, protocol, given, defended):
    for held, adapts in ((threat, False), ("strong", True)):
        (found,) = told_truly(defended(protocol, given), name, threat=held)
        assert bool(found.used) == adapts


def test_a_target_that_was_not_sent_was_not_defended(defended):
    """Beside the targets stand real uploads, which were."""
    run = defended("fedgh", "clip:norm=0.02")
    found = told_truly(run, "dip", target="representations")
    assert sentence(found) == "clip does not act on its targets"


@pytest.mark.slow
def test_of_two_stages_each_is_told(defended):
    run = defended("fedre", "clip:norm=0.02")
    told_truly(run, "dip", target="recovered-prototypes")
    told_truly(run, "joint-disentangle", target="recovered-prototypes")
    attacker = asked(run, "dip", target="recovered-prototypes").lines()["Attacker"]
    assert attacker.endswith(
        "; disentangle: adaptive to clip; dip: clip does not act on its targets"
    )


@pytest.mark.parametrize(
    ("over", "says"),
    [
        (["quantise:bits=4"], "adaptive to mask; knows quantise, does not use it"),
        (["gaussian:clip=1,noise=0.001"], "adaptive to mask, gaussian (bound; not noise)"),
        (
            ["gaussian:clip=0.02,noise=0.001", "clip:norm=0.01"],
            "adaptive to gaussian (bound; not noise), clip; knows mask, does not use it",
        ),
    ],
)
def test_a_mask_is_used_where_the_size_of_noise_over_it_is_known(over, says, tiny, tmp_path):
    given = ["mask:keep=0.5", *over]
    run = train(tiny(protocol={"name": "fedgh"}, defense=given), runs=tmp_path)
    assert sentence(told_truly(run, "dip")) == says


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ("gaussian:clip=1,noise=0.0001", "adaptive to prune; knows gaussian, does not use it"),
        ("quantise:bits=4", "knows prune, quantise, does not use them"),
    ],
)
def test_a_mask_of_updates_is_used_under_noise_and_not_under_rounding(over, says, tiny, tmp_path):
    given = ["prune:keep=0.1", over]
    run = train(tiny(protocol={"name": "fedsgd"}, defense=given), runs=tmp_path)
    assert sentence(told_truly(run, "inverting-gradients")) == says


def test_what_an_attack_on_linear_layers_knows_it_does_not_use():
    torch.manual_seed(0)
    model = SplitModel(nn.Flatten(), nn.Linear(64, 8), dim=8, num_classes=10, normalise=Normalise())
    image = torch.rand(1, 1, 8, 8)
    loss = nn.functional.cross_entropy(model(image), torch.tensor([3]))
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    upload = Upload(0, 1, (GradientState(dict(zip(names, slopes, strict=True))),))
    clip = KnownDefense("clip", {}, Channel(updates=(ClippingStep(0.01),)))
    told = Observation(
        threat=threats.get("strong"), targets=(upload,), uploads=(upload,), broadcasts=(),
        extractors={}, image_shape=(1, 8, 8), num_classes=10, models={(0, 1): model},
        images_per_target=1, defenses=(clip,),
    )  # fmt: skip
    attack = attacks.get("analytic")()
    assert same(attack(told).save()[0], attack(replace(told, defenses=())).save()[0])
    assert sentence(adaptations(attack, told)) == "knows clip, does not use it"


def test_all_of_it_in_one_sentence():
    found = [
        Adaptation("dip", "clip", True, ("bound",)),
        Adaptation("dip", "gaussian", True, ("bound",), ("noise",)),
        Adaptation("dip", "quantise", True, (), ("random rounding",)),
        Adaptation("dip", "label-smoothing", True),
        Adaptation("dip", "mine", False),
    ]
    assert sentence(found) == (
        "adaptive to clip, gaussian (bound; not noise); knows quantise, does not use it; "
        "label-smoothing does not act on its targets; 'mine' describes no channel: not adapted to"
    )


# --- a defence of somebody else ------------------------------------------------------------------


@pytest.fixture
def own_module(repo, tmp_path, monkeypatch):
    """Write the documented defence to a file of its own, perhaps changed; return its name."""
    blocks = re.findall(
        r"```python\n(.*?)```", (repo / "docs" / "add_your_own.md").read_text(), re.S
    )
    (example,) = [block for block in blocks if "class UniformNoise" in block]
    assert len(example.splitlines()) <= 40
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, change=lambda text: text):
        (tmp_path / f"{name}.py").write_text(change(example))
        allow_module_paths(f"{name}:UniformNoise")
        return f"{name}:UniformNoise"

    return write


READERS = ("average", "dip", "linear", "pixel", "joint-disentangle")


@pytest.mark.slow
def test_attacks_adapt_to_a_defence_of_which_nothing_here_knows(own_module, tiny, tmp_path):
    mine = own_module("my_defenses")
    run = train(
        tiny(
            protocol={"name": "fedgh"}, defense=[f"{mine}:norm=0.02"],
            record={"keep_every": 1},
        ),
        runs=tmp_path / "runs",
    )  # fmt: skip
    for name in READERS:
        (found,) = told_truly(run, name)
        assert found.defense == mine and "bound" in found.used
    trial, sealed = asked(run, "average"), tmp_path / "sealed"
    sealed.mkdir()
    pack(trial.observation, sealed)
    assert same(answer(trial, unpack(sealed)), answer(trial, trial.observation))
    assert f"; adaptive to {mine}" in trial.lines()["Attacker"]


def test_a_defence_that_describes_nothing_is_said_not_to_be_adapted_to(own_module, tiny, tmp_path):
    mine = own_module("mute_defenses", lambda text: text[: text.index("    def channel(")])
    settings = tiny(protocol={"name": "fedgh"}, defense=[mine, "clip:norm=0.02"])
    run = train(settings, runs=tmp_path / "runs")
    assert sentence(told_truly(run, "dip")) == (
        f"adaptive to clip; '{mine}' describes no channel: not adapted to"
    )
    assert (
        asked(run, "dip", attacker="naive")
        .lines()["Attacker"]
        .endswith(f"naive: does not know {mine}, clip")
    )


def test_the_documented_table_of_steps_is_what_attacks_declare(repo):
    page = (repo / "docs" / "defenses.md").read_text()
    table = page.split("| attack | extractor | each representation |")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        names, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`([\w-]+)`", names):
            found[name] = ["" if cell == "-" else cell for cell in cells]
    places = ("extractor", "each", "rows", "updates", "statistics", "encoding")
    assert found == {
        name: [", ".join(k.word for k in attacks.get(name).adapts_to.get(p, ())) for p in places]
        for name in attacks.names()
    }
