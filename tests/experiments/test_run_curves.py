"""Several trainings in one figure: what is a line, what a target costs, and the best round."""

from __future__ import annotations

import pandas as pd
import pytest

from fedre_privacy.cli import train as command
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.eval.report.curves import AccuracyCurve, learning_curves
from fedre_privacy.eval.report.style import LONGEST
from fedre_privacy.reports.run_curves import compare
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("curves")

    def made(protocol="fedre", **how):
        return Run(train(tiny(protocol=protocol, train=how), runs=folder).folder)

    return {
        "one": made(seed=1), "two": made(seed=2), "local": made("local"), "long": made(lr=0.2),
    }  # fmt: skip


def test_runs_that_differ_in_their_seed_are_one_line(trained):
    found = compare([trained["one"], trained["two"]])
    assert list(found.groups) == ["fedre"]
    assert [run.settings.train.seed for run in found.groups["fedre"]] == [1, 2]
    whole = compare(list(trained.values()))
    assert list(whole.groups) == ["fedre, lr 0.06", "local, lr 0.06", "fedre, lr 0.2"]
    assert list(compare([trained["one"], trained["long"]]).groups) == ["lr 0.06", "lr 0.2"]


def test_a_long_name_in_the_legend_is_broken_into_lines_and_not_cut():
    frame = pd.DataFrame({"round": [1, 2], "x": [1, 2], "accuracy": [0.2, 0.4], "seed": 0})
    long = ", ".join(f"setting.of.a.part {n}" for n in range(6))
    figure = learning_curves([AccuracyCurve(long, frame)], across="round")
    (said,) = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert said.replace("\n", " ") == long and max(map(len, said.split("\n"))) <= LONGEST


def test_rows_are_those_of_the_runs_at_the_quoted_moment(trained):
    frame = compare([trained["one"], trained["local"]]).frame()
    for name, moment in (("one", "acc_post_broadcast"), ("local", "acc_post_local")):
        rows = pd.read_csv(trained[name].folder / "metrics.csv")
        mine = frame[frame["run"] == trained[name].name]
        assert mine["accuracy"].tolist() == rows[moment].tolist()
        assert mine["bytes"].iloc[-1] == rows["up_bytes"].sum() + rows["down_bytes"].sum()


def test_best_and_last_round_and_what_a_target_costs(trained):
    run = trained["one"]
    accuracy = pd.read_csv(run.folder / "metrics.csv")["acc_post_broadcast"]
    number, best = run.best_round()
    assert best == accuracy.max() and accuracy[number - 1] == best
    (row,) = compare([run]).table(target=float(accuracy.min()))
    assert row["last round"] == f"{accuracy.iloc[-1]:.3f}" and row["best round"] == f"{best:.3f}"
    first = int((accuracy >= accuracy.min()).idxmax()) + 1
    assert (row["reach"], row["rounds to it"]) == ("1 of 1", f"{first:.1f}")
    (row,) = compare([run]).table(target=1.01)
    assert (row["reach"], row["rounds to it"], row["sent until then"]) == ("0 of 1", "-", "-")


def test_the_command_draws_and_prints(trained, tmp_path, capsys):
    folders = [str(run.folder) for run in trained.values()]
    out = tmp_path / "figure.png"
    given = ["curves", *folders, "--out", str(out), "--target", "0.1", "--over", "traffic"]
    assert command.main(given) == 0
    said = capsys.readouterr().out
    assert "best round" in said and "fedre, lr 0.06" in said and str(out) in said
    for ending in ("png", "pdf", "csv"):
        assert out.with_suffix(f".{ending}").stat().st_size > 0
    assert command.main(["curves", "nowhere", "--runs-dir", str(tmp_path)]) == 4
    assert "No run at nowhere" in capsys.readouterr().err


def test_what_cannot_be_compared_is_refused(trained, tiny, tmp_path):
    with pytest.raises(ConfigError, match="headline, post_local, post_broadcast"):
        compare([trained["one"]], "best")

    def interrupt(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tiny(protocol="fedre"), runs=tmp_path, report=interrupt)
    (folder,) = tmp_path.glob("fedre-*")
    with pytest.raises(ConfigError, match="Not complete"):
        compare([Run(folder)])
