"""What every steering promises; a new one is tested by being registered."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedre_privacy.core.artifacts import (
    Artifact,
    HeadState,
    MatrixBlocks,
    ModelState,
    Prototypes,
    SmallModelState,
)
from fedre_privacy.core.config import build_plugin, plain_plugin
from fedre_privacy.core.rng import seeded
from fedre_privacy.core.types import Broadcast, Upload
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.protocols.base import protocols
from fedre_privacy.steering.apply import Conduct, breach, same
from fedre_privacy.steering.base import Held, Steering, View, steerings

NAMES = steerings.names()
ROWS = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def blank(client: int = 0) -> nn.Module:
    with seeded(3, "model"):
        return build_model(ModelSettings(name="cnn4", dim=16), client, (1, 16, 16), 4)


SHIPPED = {name: value.detach().clone() for name, value in blank().named_parameters()}
AUX = torch.rand(40, 1, 16, 16, generator=torch.Generator().manual_seed(2))
HELD = Held(AUX, torch.arange(40) % 4, blank)
HONEST: dict[type[Artifact], Artifact] = {
    HeadState: HeadState({"weight": ROWS, "bias": ROWS[:, 0].clone()}),
    Prototypes: Prototypes(ROWS[:3].abs(), torch.tensor([0, 2, 3])),
    MatrixBlocks: MatrixBlocks(ROWS.reshape(2, 3, 4)[:, :, :3].contiguous()),
    ModelState: ModelState(SHIPPED),
    SmallModelState: SmallModelState(SHIPPED),
}
"""What an honest server sends, by kind. A steering that alters another kind adds it here."""


def message_for(one: Steering) -> tuple[Artifact, ...]:
    return tuple(artifact for kind, artifact in HONEST.items() if issubclass(kind, one.alters))


def view(held: Held = HELD) -> View:
    sent = Prototypes(ROWS[:2].abs() + 1, torch.tensor([0, 3]))
    uploads = tuple(Upload(k, 1, (sent,)) for k in range(5))
    return View(uploads, (Broadcast(1, tuple(range(5)), tuple(HONEST.values())),), 5, 4, held)


@pytest.mark.parametrize("name", NAMES)
def test_declarations(name):
    one = steerings.get(name)()
    assert one.name == name and type(one).__doc__
    assert one.alters or one.chooses, "it does nothing"
    assert bool(one.alters) == (type(one).steer is not Steering.steer)
    assert all(kind in Artifact.kinds.values() for kind in one.alters)
    problems: list[str] = []
    assert build_plugin(steerings, plain_plugin(one), at="steering", problems=problems) == one


@pytest.mark.parametrize("name", NAMES)
def test_clients_take_what_it_sends_and_the_same_stream_gives_the_same(name):
    one = steerings.get(name)()
    honest = message_for(one)
    if not one.alters:
        return
    assert honest, f"say in HONEST what a server sends that '{name}' alters"
    before, state = [a.detached() for a in honest], torch.random.get_rng_state()
    shown = view(HELD.shown(one.needs))  # what it declares to need, and no more
    made = [one.steer(shown, 2, 3, honest, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert breach(made[0], honest, one.alters) is None
    assert same(*made) and not same(made[0], honest)
    assert same(honest, tuple(before))  # the honest message is not changed
    assert torch.equal(torch.random.get_rng_state(), state)  # no global randomness


@pytest.mark.parametrize("name", NAMES)
def test_it_chooses_as_many_clients_as_an_honest_server(name):
    conduct = Conduct([steerings.get(name)()], seed=0, clients=5, num_classes=4)
    for honest in ((0, 1), (2, 4), tuple(range(5))):
        assert len(conduct.participants(1, honest)) == len(honest)


@pytest.mark.parametrize("name", NAMES)
def test_a_protocol_that_sends_nothing_it_alters_is_refused(name):
    one = steerings.get(name)()
    fits = {p for p in protocols.names() if not one.check(3, protocols.get(p).broadcasts)}
    altered = {
        p
        for p in protocols.names()
        if any(issubclass(kind, one.alters) for kind in protocols.get(p).broadcasts)
    }
    assert fits - {"local"} == (altered if one.alters else set(protocols.names()) - {"local"})


@pytest.mark.parametrize("name", [n for n in protocols.names() if protocols.get(n).broadcasts])
def test_protocols_declare_what_their_servers_send(name, trained):
    _, broadcasts = trained(name).messages().of()
    sent = {type(a) for b in broadcasts if b.round for a in b.artifacts}
    assert sent and sent <= set(protocols.get(name).broadcasts)
