"""What every defence promises; a new one is tested by being registered.

One that cannot do without settings adds them here.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from fedre_privacy.core.artifacts import Artifact, Prototypes, is_one_of
from fedre_privacy.core.config import build_plugin, plain_plugin
from fedre_privacy.core.contents import Role
from fedre_privacy.defenses.base import Defense, defenses
from fedre_privacy.defenses.statement import state

_defences = runpy.run_path(str(Path(__file__).parents[1] / "defenses" / "conftest.py"))
artifacts, sending, facts = (_defences[name] for name in ("artifacts", "sending", "facts"))
NEEDED: dict[str, dict[str, Any]] = {
    "gaussian": {"clip": 1.0, "noise": 1.0},
    "laplace": {"clip": 1.0},
    "dp-sgd": {"clip": 1.0, "noise": 1.0},
}
NAMES = defenses.names()


def make(name: str) -> Defense:
    return defenses.get(name)(**NEEDED.get(name, {}))


@pytest.mark.parametrize("name", NAMES)
def test_declarations(name):
    made = make(name)
    assert made.name == name and type(made).__doc__
    known = (*Artifact.kinds.values(), *Role)
    assert all(one in known for one in made.acts_on)
    changes = [hook for hook in ("defend", "represent", "trainer", "seen")
               if getattr(type(made), hook) is not getattr(Defense, hook)]  # fmt: skip
    assert changes, "it does nothing"
    assert bool(made.acts_on) == ("defend" in changes)
    problems: list[str] = []
    assert build_plugin(defenses, plain_plugin(made), at="defense", problems=problems) == made


@pytest.mark.parametrize("name", NAMES)
def test_form_stays_and_the_same_stream_gives_the_same(name, artifacts, sending):
    made, before = make(name), torch.random.get_rng_state()
    for artifact in artifacts.values():
        if not is_one_of(type(artifact), made.acts_on):
            continue
        old = {key: value.clone() for key, value in artifact.tensors().items()}
        where = sending(kinds=(type(artifact),))
        sent = [made.defend(artifact, where, torch.Generator().manual_seed(4)) for _ in range(2)]
        assert {n: t.shape for n, t in sent[0].tensors().items()} == {
            n: t.shape for n, t in old.items()
        }
        assert type(sent[0]) is type(artifact)
        for key, value in sent[0].tensors().items():
            assert bool(value.isfinite().all()), key
            assert torch.equal(value, sent[1].tensors()[key]), key
            assert torch.equal(artifact.tensors()[key], old[key]), key
    assert torch.equal(torch.random.get_rng_state(), before)  # no global randomness


@pytest.mark.parametrize("name", NAMES)
def test_it_states_what_it_costs_or_that_it_is_a_heuristic(name, facts):
    made, asked = make(name), facts(kinds=(Prototypes,))
    said = state([made], asked)
    if made.cost(asked) is None:
        assert said.heuristics == (name,) and not said.guarantees
    else:
        assert said.guarantees or said.reasons
