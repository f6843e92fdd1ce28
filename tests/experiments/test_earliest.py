"""Which round is attacked where none is asked for."""

import pytest

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train


def asked(name, target, **evaluation):
    problems = []
    values = {"attack": {"name": name}, "target": target, "threat": "fedre-paper"}
    found = resolve_attack({**values, "eval": evaluation}, {}, problems)
    assert found is not None, problems
    return found


@pytest.mark.parametrize("protocol", ["fedavg", "fedavgdbe", "fml", "fedkd"])
def test_updates_are_attacked_in_the_first_round_whose_models_need_not_be_kept(
    tiny, digits, tmp_path, protocol
):
    settings = tiny(protocol=protocol, train={"rounds": 3})
    usual = asked("update-inversion", "update")
    check_ahead(settings, usual)
    run = train(settings, runs=tmp_path)
    assert run.kept_rounds() == [3]
    trial = prepare_attack(run, usual, data=digits)
    assert trial.round == 1 and {u.round for u in trial.observation.targets} == {1}
    assert {r for _, r in trial.observation.models} == {1}
    assert trial.observation.extractors == {}
    for wanted in (2, 3):
        later = asked("update-inversion", "update", round=wanted)
        check_ahead(settings, later)
        assert prepare_attack(run, later, data=digits).round == wanted
    other = asked("loss-membership", "membership")
    assert prepare_attack(run, other, data=digits).round == 3


def test_a_round_whose_truth_or_extractors_are_not_kept_is_refused_ahead(tiny):
    for protocol, name, target in (
        ("fedsgd", "inverting-gradients", "update"),
        ("fedgh", "dip", "uploaded"),
        ("fedavg", "loss-membership", "membership"),
    ):
        with pytest.raises(ConfigError, match="Add --set record.keep_first=true"):
            check_ahead(tiny(protocol=protocol), asked(name, target, round=1))
