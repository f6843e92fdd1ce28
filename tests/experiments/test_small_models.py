"""Prototypes read off the head of a small model that was sent are those of that small model."""

from typing import Any

import pytest
import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.gradients.head_uploads import earlier_cases, head_cases
from fedre_privacy.cli import attack
from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Knowledge
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train

SMALL = {"name": "cnn4", "dim": 16}
PROTOCOLS = ("fml", "fedapen", "fedkd")


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """A run of each protocol, whose small model has other representations than clients' own."""
    folder = tmp_path_factory.mktemp("small")
    whole = {"energy_start": 1.0, "energy_end": 1.0}
    return {
        name: train(
            tiny(protocol={"name": name, "small": SMALL, **(whole if name == "fedkd" else {})}),
            runs=folder,
        )
        for name in PROTOCOLS
    }


def asked(**values: Any):
    problems: list[str] = []
    settings = resolve_attack(values, {}, problems)
    assert settings is not None, problems
    return settings


def small_after(run: Run, client: int) -> Any:
    """The small model of a client after the last round, put together by hand from messages."""
    model = build_model(ModelSettings(**SMALL), 0, run.image_shape, 10)
    shapes = {name: value.shape for name, value in model.named_parameters()}
    uploads, broadcasts = run.messages().of()
    own = [b for b in broadcasts if client in b.recipients and b.round <= 2]
    (sent,) = (u for u in uploads if u.client == client and u.round == 2)
    state: dict[str, torch.Tensor] = {}
    for artifact in [a for b in own for a in b.artifacts] + list(sent.artifacts):
        found = artifact.parameters(shapes)
        change = artifact.kind == "low-rank-change"
        state = {k: state[k] + found[k] for k in shapes} if change else found
    model.load_state_dict(state, strict=False)
    return model.eval()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_they_are_told_apart_from_those_of_the_clients_own_models(trained, digits, name):
    run = trained[name]
    found = prepare_attack(run, asked(attack={"name": "head"}, threat="strong"), data=digits)
    train_parts, _ = run.split_indices()
    for client, label, vector in zip(
        found.truth.clients.tolist(), found.truth.labels.tolist(), found.truth.vectors, strict=True
    ):
        own = train_parts[client][digits.labels[train_parts[client]] == label]
        with torch.no_grad():
            wanted = small_after(run, client).extractor(digits.floats(own)).mean(0)
        torch.testing.assert_close(vector, wanted, atol=1e-4, rtol=1e-3)
    for (client, _), extractor in found.observation.extractors.items():
        with torch.no_grad():
            rows = extractor(digits.floats(torch.arange(3)))
            wanted = small_after(run, client).extractor(digits.floats(torch.arange(3)))
        torch.testing.assert_close(rows, wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_what_is_recovered_is_inverted_through_the_small_model(trained, digits, name):
    settings = asked(
        attack={"name": "linear"}, target="recovered-prototypes", via={"name": "head"},
        threat="strong", eval={"targets": 4, "ceiling": 2, "rule": "nearest-rep"},
    )  # fmt: skip
    trial = prepare_attack(trained[name], settings, data=digits)
    rows = [a.rows() for u in trial.observation.targets for a in u.artifacts]
    assert all(row.shape[1] == SMALL["dim"] for row in rows)
    assert trial.lines()["Target"].endswith("by head, those of the small model that was sent")
    card = trial.score(settings.attack(trial.observation, Context(0)))
    assert set(card.others) == {"true", "ceiling"} and len(card.rows)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_heads_before_and_after_a_round_are_those_of_the_messages(trained, digits, name):
    run = trained[name]
    trial = prepare_attack(run, asked(attack={"name": "head"}, threat="strong"), data=digits)
    cases, _ = head_cases(trial.observation)
    assert [case.client for case in cases] == [0, 1, 2]
    for case in cases:
        torch.testing.assert_close(
            case.weight - case.change_weight, small_after(run, case.client).head.weight.data,
            atol=1e-5, rtol=1e-4,
        )  # fmt: skip
        (before,) = earlier_cases(trial.observation, case, 1)
        assert before.round == 1 and bool(before.change_weight.any())


def test_whoever_sends_a_small_model_hands_over_its_extractor(trained, digits):
    settings = asked(
        attack={"name": "dip", "steps": 2}, target="recovered-prototypes", via={"name": "head"},
        threat="realistic", eval={"targets": 2},
    )  # fmt: skip
    trial = prepare_attack(trained["fml"], settings, data=digits)
    assert Knowledge.EXTRACTOR in trial.observation.threat.grants
    assert "hands over" in trial.lines()["Attacker"]
    with pytest.raises(IncompatibleError, match="fml uploads whole models"):
        old = asked(**{**settings.plain(), "eval": {"targets": 2, "staleness": 1}})
        prepare_attack(trained["fml"], old, data=digits)
    own = asked(attack={"name": "dip"}, target="prototypes", threat="realistic")
    with pytest.raises(IncompatibleError, match="needs EXTRACTOR"):
        prepare_attack(trained["fml"], own, data=digits)


def test_counterfactual_prototypes_are_those_of_the_clients_own_models(trained, digits):
    settings = asked(attack={"name": "dip"}, target="prototypes", eval={"targets": 3})
    trial = prepare_attack(trained["fml"], settings, data=digits)
    sent = [a for u in trial.observation.targets for a in u.artifacts]
    assert any(isinstance(a, Prototypes) for a in sent)
    assert all(a.rows().shape[1] == 32 for a in sent)


@pytest.mark.parametrize(
    "values",
    [
        {"attack": {"name": "head"}},
        {"attack": {"name": "dip"}, "target": "recovered-prototypes", "via": {"name": "head"}},
    ],
)
def test_a_head_behind_a_private_projector_tells_nothing_of_its_extractor(tiny, values):
    training = tiny(protocol={"name": "fedmrl", "small": SMALL})
    with pytest.raises(IncompatibleError, match="projector that clients keep"):
        check_ahead(training, asked(**values))


def test_a_list_says_what_the_small_model_makes_possible(trained, tiny, tmp_path, capsys):
    hidden = train(tiny(protocol={"name": "fedmrl", "small": SMALL}), runs=tmp_path)
    said = {}
    for name, run in (("fml", trained["fml"]), ("fedmrl", hidden)):
        assert attack.main(["list", "--for", str(run.folder), "--threat", "realistic"]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        said[name] = [line for line in lines if line[:1] == ["recovered-prototypes"]]
    assert ["dip", "images", "yes"] in [line[-3:] for line in said["fml"]]
    assert said["fedmrl"] == []
