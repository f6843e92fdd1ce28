"""What the Attacker line says of an attack and a defence is what the attack does.

"Adaptive to" means that the answer is another one when the channel is withheld (`--attacker
naive`), "does not use" that it is the same to the last bit. Every built-in attack is asked on runs
under every built-in defence that its protocol can have.
"""

from dataclasses import replace

import pytest
import torch

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.core.types import (
    EntangledRep,
    GradientState,
    HeadState,
    MatrixBlocks,
    ModelState,
    Prototypes,
)
from fedre_privacy.defenses.base import defenses
from fedre_privacy.play.adaptation import sentence
from fedre_privacy.play.attack import prepare_attack
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.settings import resolve_attack
from fedre_privacy.runs.training import train

BOUNDS = ("clip:norm=0.2", "clip:norm=0.2,where=representation")
NOISES = ("gaussian:clip=1,noise=0.5", "gaussian:clip=0.2,noise=0.5,unit=record")
ROWS = (
    *BOUNDS, *NOISES, "laplace:clip=1,epsilon=50", "mask:keep=0.5", "quantise:bits=2",
    "dp-sgd:clip=1,noise=1,delta=1e-3",
)  # fmt: skip
TRAINED = (
    "clip:norm=0.01", "gaussian:clip=0.01,noise=0.5", "laplace:clip=0.01,epsilon=50",
    "mask:keep=0.5", "prune:keep=0.3", "quantise:bits=2", "dp-sgd:clip=1,noise=1,delta=1e-3",
)  # fmt: skip
RUNS = {
    "fedgh": ROWS,
    "fedre": (*ROWS, "label-smoothing", "scheme quantised", "scheme decoy", "scheme m-of-n"),
    "fedsgd": (*TRAINED, "secagg"),
    "fedavg": (*TRAINED, "secagg"),
    "lg-fedavg": TRAINED,
    "fedral": TRAINED,
}
"""Protocols whose uploads every attack reads some of, and what their clients do."""
QUICK = {
    "decoder": {"updates": 2, "width": 4, "views": 1, "stages": 1, "match_targets": False},
    "linear": {"views": 1},
    "dip": {"steps": 3},
    "joint-disentangle": {"steps": 3, "views": 2},
    "pixel": {"steps": 3},
    "dlg": {"steps": 1, "inner": 3, "restarts": 1},
    "idlg": {"steps": 1, "inner": 3, "restarts": 1},
    "head": {"steps": 5},
    "inverting-gradients": {"steps": 3},
    "update-inversion": {"steps": 3},
}
OFTEN = {
    ("fedgh", "clip:norm=0.2"), ("fedre", "label-smoothing"), ("fedsgd", "clip:norm=0.01"),
    ("fedavg", "prune:keep=0.3"), ("fedral", "clip:norm=0.01"),
}  # fmt: skip
"""Runs on which the attacks are asked in every test run; the others are slow."""
SENT = {
    "fedgh": Prototypes, "fedre": EntangledRep, "fedsgd": GradientState, "fedavg": ModelState,
    "lg-fedavg": HeadState, "fedral": MatrixBlocks,
}  # fmt: skip
ELSEWHERE = {"analytic"}


def readers(protocol):
    """Attacks that read what a protocol sends."""
    sent = SENT[protocol]
    return [n for n in attacks.names() if issubclass(sent, attacks.get(n).consumes)]


PAIRS = [
    pytest.param(
        protocol, given, name,
        id=f"{name}-{protocol}-{given}",
        marks=() if (protocol, given) in OFTEN else (pytest.mark.slow,),
    )
    for protocol, all_given in RUNS.items()
    for given in all_given
    for name in readers(protocol)
    if name not in ELSEWHERE
    if not (given == "secagg" and attacks.get(name).answers != "images")
]  # fmt: skip


@pytest.fixture(scope="module")
def defended(tiny, tmp_path_factory):
    """Make the run of a protocol under a defence, once."""
    made = {}

    def run(protocol, given):
        if (protocol, given) not in made:
            sections = {"protocol": {"name": protocol}, "defense": [given]}
            if given.startswith("scheme "):
                scheme = {"name": given.removeprefix("scheme ")}
                sections = {"protocol": {"name": protocol, "entanglement": scheme}}
            settings = tiny(
                **sections, train={"rounds": 4, "clients": 3}, record={"keep_every": 1},
                partition={"name": "pra", "alpha": 0.2},
            )  # fmt: skip
            made[protocol, given] = train(settings, runs=tmp_path_factory.mktemp("runs"))
        return made[protocol, given]

    return run


def asked(run, name, attacker="adaptive", **settings):
    """An attack ready to be played on a run."""
    attack = attacks.get(name)
    target = attack.answers if attack.answers in ("labels", "membership") else "uploaded"
    values = {
        "attack": {"name": name, **QUICK.get(name, {}), **settings},
        "threat": "strong",
        "target": target,
        "eval": {
            "targets": 3, "ceiling": 0, "per_update": 2, "candidates": 10, "attacker": attacker,
        },
    }  # fmt: skip
    return prepare_attack(run, resolve_attack(values, {}, []))


def answer(game, observation):
    return game.settings.attack(observation, Context(seed=game.attack_seed)).save()[0]


def same(one, other):
    return all(torch.equal(one[k].nan_to_num(), other[k].nan_to_num()) for k in one | other)


def told_truly(run, name, **settings):
    """Check what is said of an attack on a run, and return it."""
    game = asked(run, name, **settings)
    (found,) = game.adaptations()
    naive = replace(game.observation, defenses=())
    changes = not same(answer(game, game.observation), answer(game, naive))
    assert changes == any(one.used for one in found), found
    assert sentence(found) in game.lines()["Attacker"]
    return found


@pytest.mark.parametrize(("protocol", "given", "name"), PAIRS)
def test_the_attacker_line_is_true(protocol, given, name, defended):
    told_truly(defended(protocol, given), name)


def test_every_attack_and_every_defence_is_asked():
    pairs = [pair.values for pair in PAIRS]
    assert {name for _, _, name in pairs} | ELSEWHERE == set(attacks.names())
    assert {given.split(":")[0] for _, given, _ in pairs if "scheme" not in given} == set(
        defenses.names()
    )
    for protocol, sent in SENT.items():
        assert sent in protocols.get(protocol).uploads
