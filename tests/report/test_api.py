"""The front door: light to open, and the same settings as the commands."""

from __future__ import annotations

import html
import subprocess
import sys

import pytest

import fedre_privacy as fp
from fedre_privacy.cli import train as train_command
from fedre_privacy.core.errors import ConfigError


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, fedre_privacy as fp; assert {'train', 'attack'} < set(dir(fp)); "
        "heavy = {'torch', 'matplotlib', 'pandas', 'numpy'} & set(sys.modules); "
        "sys.exit(', '.join(heavy) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        fp.trian  # noqa: B018
    with pytest.raises(ImportError):
        from fedre_privacy import nothing  # noqa: F401


@pytest.mark.slow
def test_the_command_finds_what_the_function_trained(run, runs, capsys):
    options = ["--clients", "4", "--rounds", "2", "--runs-dir", str(runs), "--quiet"]
    for setting in ("data.size=16", "data.per_class=12", "record.keep_every=1"):
        options += ["--set", setting]
    assert train_command.main([*options, "--protocol", "fedre", "--resume"]) == 0
    assert capsys.readouterr().out.strip() == str(run.folder)


@pytest.mark.slow
def test_the_function_finds_what_it_attacked(attacked, run):
    before = (attacked.folder / "record.json").stat().st_mtime_ns
    again = fp.attack(
        str(run.folder), target="prototypes", attack="pixel", targets=6,
        set={"attack.steps": 2, "eval.ceiling": 2}, device="cpu",
    )  # fmt: skip
    assert again.folder == attacked.folder
    assert (again.folder / "record.json").stat().st_mtime_ns == before


def test_settings_of_every_type_arrive(run):
    settings = {"train.lr": 1e-5, "model.width": None, "record.truth": True, "train.epochs": 3}
    with pytest.raises(ConfigError) as refused:
        fp.train(partition="pra:0.5", set={**settings, "train.batch_size": -1, "data.sise": 16})
    assert len(refused.value.problems) == 2
    assert "train.batch_size" in str(refused.value) and "data.sise" in str(refused.value)


def test_settings_in_the_wrong_place_are_refused(run):
    with pytest.raises(ConfigError, match="attack.steps.*train only trains"):
        fp.train(set={"attack.steps": 5})
    with pytest.raises(ConfigError, match="train.lr.*recorded"):
        fp.attack(run, set={"train.lr": 0.1})
    with pytest.raises(ConfigError, match="attack.steps.*give it in 'attacks'"):
        fp.benchmark(["fedre"], set={"attack.steps": 5})
    with pytest.raises(ConfigError, match="Nothing to compare"):
        fp.benchmark()


@pytest.mark.slow
def test_results_show_themselves(run, attacked):
    shown = attacked._repr_html_()
    assert "COUNTERFACTUAL" in shown and "class-mean-image" in shown and "<img" not in shown
    assert attacked.verdict() in html.unescape(shown)
    assert f"{run.record['final']['acc_post_local']:.3f}" in run._repr_html_()
    assert repr(run).startswith("Run(fedre-digits-") and "AttackResult(pixel" in repr(attacked)
    assert len(run.frame()) == 2 and run.figure().axes
    assert len(attacked.table()) == 5 and attacked.figure().axes
