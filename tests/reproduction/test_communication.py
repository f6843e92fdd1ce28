"""Formulas against the ledger of recorded rounds, and the published tables against formulas."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedre_privacy.cli import benchmark, communication
from fedre_privacy.cli.output import table_lines
from fedre_privacy.core.errors import DamagedInputError, MissingInputError
from fedre_privacy.federation.ledger import Traffic, measure
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.models.parameter_counts import count_parameters
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.blocks.traffic import Count, Sizes
from fedre_privacy.protocols.fedgen import FedGen
from fedre_privacy.reproduction import communication as comm
from fedre_privacy.reproduction.communication import ReportedCell
from fedre_privacy.reproduction.data_shares import Shares, read_labels, share_out
from fedre_privacy.reproduction.measured_traffic import (
    MeasuredTraffic,
    Spread,
    measure_traffic,
    sizes_of_run,
)
from fedre_privacy.reproduction.published_tables import DATA_SETS, TABLE_2, TABLE_11
from fedre_privacy.runs.resolution import resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train
from fedre_privacy.runs.verification import verify

# --- formulas against what was serialised ----------------------------------------------------

PROTOCOLS = protocols.names()
SETTINGS: dict[str, dict[str, Any]] = {
    "fedral": {"blocks": [4, 8, 16]},
    "fedgen": {"hidden": 24, "steps": 1},
    "fedtgp": {"server_epochs": 1},
    "fedala": {"first_passes": 1},
}


def recorded(folder: Path, protocol: str, **settings: Any) -> Run:
    """Two rounds of three clients on 60 digits, some of which lack classes."""
    values = {
        "data": {"name": "digits", "size": 16, "per_class": 6},
        "partition": {"name": "pra", "alpha": 0.3},
        "protocol": {"name": protocol, **SETTINGS.get(protocol, {})},
        "train": {"clients": 3, "rounds": 2, "batch_size": 8, **settings},
        "record": {"truth": False},
    }
    problems: list[str] = []
    made = resolve_training(values, {}, problems)
    assert made is not None and not problems, problems
    return train(made, runs=folder)


def traffic(run: Run, round: int) -> tuple[Traffic, Traffic]:
    """What the ledger says of one round's uploads and broadcasts on disk."""
    uploads, broadcasts = read_messages(run.folder / "uploads", [round])
    return (
        measure((upload.artifacts, 1) for upload in uploads),
        measure((sent.artifacts, len(sent.recipients)) for sent in broadcasts),
    )


def agree(count: Count, ledger: Traffic) -> None:
    counted = (count.paper, count.complete, count.nbytes)
    assert counted == (ledger.scalars_paper, ledger.scalars_complete, ledger.nbytes)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_formula_is_what_the_ledger_measured(protocol: str, tmp_path: Path) -> None:
    run = recorded(tmp_path, protocol)
    facts = sizes_of_run(run)
    assert facts is not None and facts.pairs < facts.clients * facts.classes  # P is not just K C
    up, down = traffic(run, 2)
    if protocol == "fpl":
        sent = read_messages(run.folder / "uploads", [2])[1][0].artifacts[0]
        clusters = len(sent.rows())  # type: ignore[arg-type]
        assert facts.seen <= clusters <= facts.pairs
        assert comm.scalars("fpl", facts).down is None
        facts = replace(facts, clusters=clusters)
    exchange = run.settings.protocol.traffic(facts)
    assert exchange is not None
    if protocol == "fedkd":
        assert exchange.up is None and exchange.down is None
        low_rank(run)
        return
    assert exchange.up is not None and exchange.down is not None
    agree(exchange.up, up)
    agree(exchange.down, down)
    before = traffic(run, 0)
    agree(exchange.once_up, before[0])
    agree(exchange.once_down, before[1])
    shown = measure_traffic(run)
    assert shown.paper["up"] == Spread.of([up.scalars_paper] * 2)
    assert shown.complete["down"] == Spread.of([down.scalars_complete])
    assert shown.nbytes["down"] == Spread.of([down.nbytes])


def low_rank(run: Run) -> None:
    """FedKD's ledger: r (o + i + 1) for each factored matrix, and never more than the student."""
    uploads, broadcasts = read_messages(run.folder / "uploads", [2])
    assert len(broadcasts[0].recipients) == 3
    total = 0
    factored = 0
    for upload in uploads:
        tensors = upload.artifacts[0].tensors()
        for name, tensor in tensors.items():
            if name.endswith(".dense"):
                total += tensor.numel()
            elif name.endswith(".U"):
                out, rank = tensor.shape
                width = tensors[name[:-1] + "V"].shape[1]
                total += rank * (out + width + 1)
                factored += 1
    assert factored > 0
    sent = traffic(run, 2)[0]
    assert sent.scalars_complete == sent.scalars_paper == total
    assert total < 3 * count_parameters("cnn4", (1, 16, 16), 10)["total"]


def test_partial_participation_has_no_formula(tmp_path: Path) -> None:
    run = recorded(tmp_path, "fedre", join_ratio=0.7)
    assert sizes_of_run(run) is None and measure_traffic(run).formula is None


def test_fd_as_the_libraries_do_it_sends_no_contributors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETTINGS, "fd", {"target": "library"})
    run = recorded(tmp_path, "fd")
    facts = sizes_of_run(run)
    assert facts is not None
    exchange = run.settings.protocol.traffic(facts)
    assert exchange is not None and exchange.down is not None
    agree(exchange.down, traffic(run, 2)[1])


# --- published tables ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shares() -> dict[str, Shares]:
    return {key: share_out(key) for key in DATA_SETS}


@pytest.fixture(scope="module")
def cells(shares: dict[str, Shares]) -> list[ReportedCell]:
    return comm.table_11(shares)


def test_facts_behind_the_tables(shares: dict[str, Shares]) -> None:
    assert [own.pairs for own in shares.values()] == [61, 502, 937]
    sizes = [comm.sizes_of(key, own) for key, own in shares.items()]
    assert [facts.model for facts in sizes] == [878_538, 924_708, 23_917_832]
    assert [facts.small for facts in sizes] == [873_408 + 1290, 873_408 + 12_900, 5_617_800]
    assert [facts.dim for facts in sizes] == [512, 512, 2048]
    generators = []
    for own in sizes:
        down = FedGen().traffic(own).down
        assert down is not None
        generators.append((down.floats - down.paper) // own.clients)
    assert generators == [531_456, 577_536, 1_416_704]


def test_108_cells_are_exact_to_the_printed_digits(cells: list[ReportedCell]) -> None:
    assert len(cells) == 126
    for cell in cells:
        if cell.method == "FedKD":
            assert (cell.status, cell.paper, cell.complete) == ("run-dependent", None, None)
        elif (cell.method, cell.direction) == ("FPL", "down"):
            assert (cell.status, cell.paper) == ("consistent", None)
        else:
            assert cell.paper is not None
            assert f"{cell.paper / 1000:.2f}" == f"{cell.published:.2f}", cell
            assert cell.status == "exact"
    statuses = comm.count_statuses([cell.status for cell in cells])
    assert statuses == {"exact": 108, "consistent": 6, "run-dependent": 12}


def test_fpl_clusters_inferred_from_the_broadcast(cells: list[ReportedCell]) -> None:
    notes = [c.note for c in cells if (c.method, c.direction) == ("FPL", "down")]
    assert [int(note.split()[0]) for note in notes] == [17, 22, 179, 231, 477, 516]


def test_a_wrong_number_is_called_different(
    shares: dict[str, Shares],
) -> None:
    wrong = {
        ("FedRE", "homogeneous"): {"up": 5.13},
        ("FPL", "homogeneous"): {"down": 87.05},
        ("FPL", "heterogeneous"): {"down": 4.61},
    }
    rows = [replace(row, **wrong.get((row.method, row.setting), {})) for row in TABLE_11]
    only = {"cifar10": shares["cifar10"]}
    found = [cell for cell in comm.table_11(only, rows) if cell.status == "differs"]
    assert [(c.method, c.setting, c.direction) for c in found] == [
        ("FPL", "homogeneous", "down"),
        ("FPL", "heterogeneous", "down"),
        ("FedRE", "homogeneous", "up"),
    ]


def test_table_2_mixes_settings(cells: list[ReportedCell]) -> None:
    found = comm.table_2(cells)
    assert len(found) == 2 * len(TABLE_2) == 18
    by_place = {(n.method, n.direction): n for n in found}
    assert by_place["FedGen", "up"].settings == ("homogeneous",)
    assert by_place["FedGen", "down"].settings == ("heterogeneous",)
    assert by_place["FedGen", "down"].complete == 6_288_360
    assert by_place["FPL", "down"].settings == ("homogeneous",)
    assert by_place["FedRE", "up"].settings == ("homogeneous", "heterogeneous")
    assert Counter(n.status for n in found) == {"exact": 15, "consistent": 1, "run-dependent": 2}


def test_table_4_and_its_like_for_like(shares: dict[str, Shares]) -> None:
    totals = comm.table_4(shares["tinyimagenet"])
    assert [(t.method, t.partition, t.dim, t.scalars, t.status) for t in totals] == [
        ("FedAllRep", "PRA", 512, 42_160_386, "exact"),
        ("FedAllRep", "PAT", 512, 42_258_882, "exact"),
        ("FedRE", "PRA", 2048, 4_118_480, "exact"),
        ("FedRE", "PAT", 2048, 4_118_480, "exact"),
        ("FedAllRep", "PRA", 512, 43_182_288, "like for like"),
        ("FedRE", "PRA", 512, 1_033_120, "like for like"),
        ("FedAllRep", "PRA", 2048, 172_476_624, "like for like"),
        ("FedRE", "PRA", 2048, 4_120_480, "like for like"),
    ]


def test_fedral_uploads() -> None:
    costs = comm.fedral_table_4()
    assert [cost.scalars for cost in costs] == [1000, None, 5000, 2500, 5000, 2000, 50_000, 10_000]
    assert [cost.blocks for cost in costs if cost.row.method == "FedRAL"] == [None, 100, 125, 25]
    assert Counter(cost.status for cost in costs) == {"exact": 4, "consistent": 3, "impossible": 1}
    assert all(cost.total_matches for cost in costs)


def test_numbers_of_the_models_named_in_the_text(shares: dict[str, Shares]) -> None:
    """With the models of the text: ResNet-18 at d = 512 instead of ResNet-50 at d = 2048."""
    size = count_parameters("resnet18", (3, 64, 64), 200)["total"]
    facts = replace(comm.sizes_of("tinyimagenet", shares["tinyimagenet"]), dim=512, model=size)
    up = {name: comm.scalars(name, facts).up for name in ("fedavg", "fedgh", "fedre", "lg-fedavg")}
    thousands = {name: comm.printed_scalars(count.paper) for name, count in up.items() if count}
    assert thousands == {
        "fedavg": "112791.12", "fedgh": "479.74", "fedre": "5.12", "lg-fedavg": "1026.00"
    }  # fmt: skip


def test_against_an_independent_check(cells: list[ReportedCell]) -> None:
    """Every recomputed scalar of the shared check; ours names labels that it leaves implicit."""
    folder = os.environ.get("FEDRE_TEST_DATA")
    path = Path(folder or "") / ".." / "reference" / "accounting_check.csv"
    if folder is None or not path.is_file():
        pytest.skip("FEDRE_TEST_DATA is not set, or reference/accounting_check.csv not beside it")
    with path.open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["setting"].startswith("model-")]
    expected = {}
    for row in rows:
        setting = row["setting"].removeprefix("model-").removesuffix(" PRA")
        way = {"upload": "up", "broadcast": "down"}[row["direction"]]
        expected[row["method"], row["dataset"], setting, way] = row
    assert len(cells) == len(expected) == 126
    for cell in cells:
        data = DATA_SETS[cell.data_set]
        row = expected[cell.method, data.name, cell.setting, cell.direction]
        assert float(row["published_thousands"]) == cell.published
        assert row["status"].startswith(cell.status.replace("run-dependent", "not derivable"))
        if cell.paper is None:
            continue
        named = cell.method in ("FedProto", "FedTGP") and cell.direction == "down"
        labels = 10 * data.num_classes if named else 0
        assert cell.paper == int(row["recomputed_scalars"])
        assert cell.complete == int(row["complete_scalars"]) + labels


# --- the command -----------------------------------------------------------------------------


def call(*arguments: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = benchmark.main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    return code, out.getvalue(), err.getvalue()


def test_the_whole_table_as_text_and_csv(tmp_path: Path, cells: list[ReportedCell]) -> None:
    path = tmp_path / "new" / "cells.csv"
    code, out, err = call("--communication", "--csv", path)
    assert code == 0 and err == ""
    assert "Table 11: 126 cells: 108 exact, 6 consistent, 12 run-dependent." in out
    rows = [line.split() for line in out.splitlines()]
    assert ["FedRE", "homo", "+", "hete", "up", "20.48", "20.48", "22.48", "87.8", "KiB", "exact"] \
        in rows  # fmt: skip
    assert ["FPL", "hete", "down", "1,182.72", "-", "-", "-", "consistent"] in rows
    for word in ("TABLE 2 of FedRE", "TABLE 4 of FedRE", "TABLE 4 of FedRAL", "P = 937 pairs"):
        assert word in out
    with path.open(encoding="utf-8", newline="") as handle:
        written = list(csv.DictReader(handle))
    assert [row["method"] for row in written] == [cell.method for cell in cells]
    assert {row["status"] for row in written} == {"exact", "consistent", "run-dependent"}
    assert float(written[0]["published"]) == 8785.38 and written[0]["nbytes"] == str(8_785_380 * 4)


def test_rows_fit_a_hundred_columns(cells: list[ReportedCell]) -> None:
    for key in DATA_SETS:
        own = [cell for cell in cells if cell.data_set == key]
        lines = table_lines(communication._merge_cells(own))
        assert max(map(len, lines)) <= 100 and len(lines) == 1 + 29


def test_json_has_every_number_and_quiet_prints_the_path(tmp_path: Path) -> None:
    code, out, _ = call("--communication", "--json", "--dataset", "cifar100")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and {event["event"] for event in events} == {"cell", "result"}
    tables = Counter(event["table"] for event in events if event["event"] == "cell")
    assert tables == {"FedRE Table 11": 42, "FedRE Table 2": 18, "FedRAL Table 4": 8}
    assert events[-1]["pairs"] == {"cifar100": 502} and events[-1]["exact"] == 36
    path = tmp_path / "cells.csv"
    assert call("--communication", "--quiet", "--dataset", "cifar10", "--csv", path) == (
        0, f"{path}\n", ""
    )  # fmt: skip


@pytest.fixture
def balanced(tmp_path: Path) -> Path:
    path = tmp_path / "labels.npy"
    np.save(path, np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000)))
    return path


def test_labels_in_any_order_give_the_same_pairs(balanced: Path) -> None:
    code, out, _ = call("--communication", "--dataset", "cifar10", "--labels", balanced)
    assert code == 0 and "P = 61 pairs" in out and str(balanced) in out
    assert "not the published indices, the same counts" in out


def test_the_real_labels_give_the_published_partition() -> None:
    folder = os.environ.get("FEDRE_TEST_DATA")
    if folder is None:
        pytest.skip("FEDRE_TEST_DATA is not set")
    path = Path(folder) / "cifar10-labels.npy"
    own = share_out("cifar10", read_labels(path), str(path))
    assert own.pairs == 61 and own.matched is True


def test_labels_that_are_refused(tmp_path: Path) -> None:
    made = {
        "short.npy": np.zeros(10, np.int64),
        "real.npy": np.zeros(60_000),
        "two.npy": np.zeros((60_000, 1), np.int64),
        "skewed.npy": np.repeat(np.arange(10), 6000) // 2,
        "objects.npy": np.array([{}], dtype=object),
    }
    for name, labels in made.items():
        np.save(tmp_path / name, labels, allow_pickle=True)
    np.savez(tmp_path / "many.npz", labels=np.zeros(3))
    (tmp_path / "text.npy").write_text("no array")
    for name, code, words in (
        ("absent.npy", 4, "No labels at "),
        ("text.npy", 4, "is not a readable .npy file"),
        ("objects.npy", 4, "is not a readable .npy file"),
        ("many.npz", 4, "is an .npz archive"),
        ("short.npy", 3, "holds int64 of shape (10,); CIFAR-10 has integers of shape (60000,)"),
        ("real.npy", 3, "holds float64 of shape (60000,)"),
        ("two.npy", 3, "holds int64 of shape (60000, 1)"),
        ("skewed.npy", 3, "6000 of each class 0 to 9 are needed; found 0: 12000, 1: 12000"),
    ):
        found, out, err = call("--communication", "--labels", tmp_path / name)
        assert (found, out) == (code, "") and words in err, name
        assert "bug" not in err


def test_options_that_are_refused(tmp_path: Path) -> None:
    for options, code, words in (
        ([], 2, "Nothing to compare: give a SWEEP.yaml, --protocols"),
        (["--communication", "--dataset", "cifar"], 2, "Unknown data set 'cifar'. Did you mean"),
        (
            ["--communication", "--dataset", "cifar100", "--labels", "x"],
            2,
            "--labels is for CIFAR-10, which --dataset leaves out.",
        ),
        (["--communication", "--csv", tmp_path], 2, "is a folder; a file is needed."),
        (["--communication", "--measured", tmp_path], 4, "No run at "),
        (["--communication", "--data-dir", tmp_path], 4, "Data set 'cifar10' is not (whole) in"),
    ):
        found, out, err = call(*options)
        assert (found, out) == (code, "") and words in err, options


def test_measured_runs_are_shown_beside_their_formula(tmp_path: Path) -> None:
    run = recorded(tmp_path, "fedre")
    code, out, _ = call(
        "--communication", "--dataset", "cifar10", "--runs-dir", tmp_path, "--measured", run.name
    )
    rows = [line.split() for line in out.splitlines() if line.strip().startswith(run.name)]
    assert code == 0
    assert rows == [
        [run.name, "up", "1.54", "1.57", "1.57"],
        [run.name, "down", "15.39", "15.39", "15.39"],
    ]


def test_a_run_of_the_same_setting_is_noted_at_its_cell(cells: list[ReportedCell]) -> None:
    sent = {"up": Spread(3_000_000.0, 2_000_000, 4_000_000), "down": None}
    run = MeasuredTraffic(
        "kd", "fedkd", "cifar10", "homogeneous", 10, "", 1, paper=sent, complete=sent, nbytes=sent
    )
    noted = [cell for cell in cells if "measured" in communication._with_runs(cell, [run]).note]
    assert [(c.method, c.setting, c.direction) for c in noted] == [("FedKD", "homogeneous", "up")]
    (cell,) = noted
    assert communication._with_runs(cell, [run]).note.endswith("3,000.00 [2,000.00, 4,000.00]")
    assert not replace(run, clients=3).belongs_to(cell)


def test_runs_that_are_refused(tmp_path: Path) -> None:
    run = recorded(tmp_path, "local")
    (run.folder / "metrics.csv").write_text("round,loss\n1,2\n")
    with pytest.raises(DamagedInputError, match="metrics.csv is not the file that was recorded"):
        measure_traffic(Run(run.folder))
    verify(run.folder, accept=True)
    with pytest.raises(DamagedInputError, match="is not the ledger of a run"):
        measure_traffic(Run(run.folder))
    record = json.loads((run.folder / "record.json").read_text())
    (run.folder / "record.json").write_text(json.dumps({**record, "status": "partial"}))
    with pytest.raises(MissingInputError, match="training did not finish"):
        measure_traffic(Run(run.folder))


def test_facts_count_the_training_samples_alone() -> None:
    facts = Sizes.of([[3, 0, 1], [0, 0, 2]], dim=5)
    assert (facts.clients, facts.classes, facts.pairs, facts.seen, facts.samples) == (2, 3, 3, 2, 6)
