"""An option is declared once, and says of its default what the settings say."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import fedre_privacy as fp
from fedre_privacy.cli import attack, benchmark, train
from fedre_privacy.core.config import knobs
from fedre_privacy.core.options import Option, document_options, options_of
from fedre_privacy.runs.options import ATTACKING, TRAINING, TrainOptions
from fedre_privacy.runs.resolution import resolve_attack, resolve_training


def usual_values() -> dict[str, Any]:
    """Every setting by its dotted name, as it is where nothing is given."""
    problems: list[str] = []
    training, attacking = resolve_training({}, {}, problems), resolve_attack({}, {}, problems)
    assert training is not None and attacking is not None
    parts = {
        "data": training.data, "partition": training.partition, "model": training.model,
        "protocol": training.protocol, "train": training.train, "record": training.record,
        "eval": attacking.evaluation,
    }  # fmt: skip
    values = {
        f"{section}.{knob.name}": getattr(part, knob.name, None)
        for section, part in parts.items()
        for knob in knobs(type(part))
    }
    partition = training.partition
    return {
        **values,
        "data": training.data.name, "protocol": training.protocol.name,
        "protocol.entanglement": training.protocol.entanglement.name,
        "model": training.model.name,
        "partition": f"{partition.name}:{getattr(partition, partition.shorthand):g}",
        "target": attacking.target, "threat": attacking.threat.name,
    }  # fmt: skip


def test_what_an_option_says_of_its_default_is_what_holds() -> None:
    usual = usual_values()
    words = {"eval.round": "last", "train.secret": "the seed"}
    for option in {**TRAINING, **ATTACKING}.values():
        said = option.usual.split(", ")[0]
        if not said or option.at in ("attack", "via", "steering"):
            continue
        value = usual[option.at]
        shown = ",".join(value) if isinstance(value, tuple) else str(value)
        assert (option.usual if "," in shown else said) == words.get(option.at, shown), option.at


def test_commands_and_functions_say_the_same() -> None:
    helps = {action.dest: action.help for action in train.parser()._actions}
    documented_ones = " ".join(str(fp.train.__doc__).split())
    for name, option in options_of(TrainOptions).items():
        if option.flag != "-" and name not in ("set", "runs"):
            assert helps[name] == option.text()
        assert " ".join(f"{name}: {option.text()}.".split()) in documented_ones
    assert {"target", "threat", "isolation"} < set(inspect.signature(fp.attack).parameters)
    helps = {action.dest: action.help for action in attack.parser()._actions}
    assert helps["attack"] == ATTACKING["attack"].text() and "dip" not in helps["attack"]


def test_a_keyword_that_is_no_option_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'protokol'"):
        fp.train(protokol="fedre")

    @document_options(TrainOptions)
    def given(**options: Any) -> dict[str, Any]:
        """Give options back."""
        return options

    assert given(rounds=3)["rounds"] == 3 and given()["engine"] == "in-process"
    assert isinstance(TRAINING["rounds"], Option) and given()["rounds"] is None


OTHERS = """
def main(words):
    print("called with", *words)
    return 5
"""


def test_another_package_brings_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "others-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[fedre_privacy.commands]\nbenchmark.post = others_command:main\n"
        "benchmark.--far = others_command:main\n"
    )
    (tmp_path / "others_command.py").write_text(OTHERS)
    monkeypatch.syspath_prepend(tmp_path)
    assert benchmark.main(["post", "FILE", "--by", "me"]) == 5
    assert capsys.readouterr().out == "called with FILE --by me\n"
    assert benchmark.main(["--far", "--jobs", "2"]) == 5
    assert capsys.readouterr().out == "called with --far --jobs 2\n"
    sys.modules.pop("others_command", None)
    with pytest.raises(SystemExit):
        train.main(["post"])
