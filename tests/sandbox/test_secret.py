"""What follows from a run's secret, and what somebody who guesses the seed gets without it."""

import json
import shutil
from base64 import b64encode
from pathlib import Path

import pytest
import torch

import fedre_privacy as fp
from fedre_privacy.core import secrets
from fedre_privacy.core.errors import ConfigError, DamagedInputError, MissingInputError
from fedre_privacy.runs.run import Run

SMALL = {"data.size": 16, "data.per_class": 40, "model.dim": 16, "train.batch_size": 8}
GIVEN = "00112233445566778899aabbccddeeff"


@pytest.fixture
def forgets(monkeypatch):
    """Forget secrets that this process was given."""

    def forget() -> None:
        for name in [key for key in secrets.os.environ if key.startswith("FEDRE_SECRET_")]:
            monkeypatch.delenv(name)

    yield forget
    forget()


def trained(folder, **more):
    return fp.train("fedgh", clients=6, rounds=2, seed=3, set=SMALL, runs=folder, **more)


def stolen(run, folder, monkeypatch):
    """The thief's result on a run, of whose images it has copies of its own."""
    data = run.settings.data.load()
    loot = {
        "IMAGES": b64encode(data.images.numpy().tobytes()).decode(),
        "LABELS": data.labels.tolist(),
        "SHA256": data.sha256,
        "SIDE": 16,
    }
    folder.mkdir()
    text = "".join(f"{name} = {value!r}\n" for name, value in loot.items())
    (folder / "loot.py").write_text(text)
    shutil.copyfile(Path(__file__).with_name("thief.py"), folder / "thief.py")
    monkeypatch.syspath_prepend(str(folder))
    return fp.attack(run, "thief:Thief", target="membership", threat="strong", isolation="process")


def test_whoever_guesses_the_seed_wins_without_a_secret_and_is_at_chance_against_one(
    tmp_path, monkeypatch, forgets
):
    for name, options in (("seed", {}), ("secret", {"secret": "new"})):
        result = stolen(trained(tmp_path / "runs", **options), tmp_path / name, monkeypatch)
        auc = result.card.get("auc").value
        said = json.loads((result.folder / "record.json").read_text())["trial"]["Secret"]
        if name == "seed":
            assert auc == 1.0
            (claim,) = fp.claim(result.folder, tmp_path / "claims")
            done = fp.repeat(claim, runs=tmp_path / "again", out=tmp_path / "v.json")
            assert {m.key: m.repeated.value for m in done.measures if not m.group}["auc"] == 0.5
            assert said.startswith("none: whoever has the images and guesses train.seed")
        else:
            assert auc == 0.5 and result.card.verdict.word != "leaks"
            assert said.startswith(result.trial.run.settings.train.secret)
        for module in ("thief", "loot"):
            monkeypatch.delitem(secrets.os.sys.modules, module, raising=False)


def test_the_same_secret_makes_the_same_bytes_and_another_one_another_split(tmp_path, forgets):
    file = tmp_path / "secret"
    file.write_text(GIVEN + "\n")
    one = trained(tmp_path / "one", secret=file)
    two = trained(tmp_path / "two", secret=file)
    other = trained(tmp_path / "one", secret="new")
    assert one.name == two.name != other.name
    recorded = [run.manifest.sha256 for run in (one, two)]
    uploads = [(run.folder / "uploads" / "r0002.safetensors").read_bytes() for run in (one, two)]
    assert uploads[0] == uploads[1] and len(recorded) == 2
    split = [[own.tolist() for own in run.split_indices()[0]] for run in (one, two, other)]
    assert split[0] == split[1] != split[2]
    assert split[0] != [own.tolist() for own in trained(tmp_path / "one").split_indices()[0]]


def test_clients_own_draws_follow_from_it(tmp_path, forgets):
    noisy = {"defense": "gaussian:clip=1,noise=1", "partition": "iid"}
    hidden = []
    for options in ({}, {"secret": "new"}):
        run = trained(tmp_path / "runs", **noisy, **options)
        hidden.append(run.settings.train.hidden)
    assert hidden[0] == 3 and hidden[1].bit_length() > 100


def test_a_secret_is_nowhere_but_in_the_private_folder(tmp_path, forgets):
    file = tmp_path / "secret"
    file.write_text(GIVEN)
    run = trained(tmp_path / "runs", secret=file)
    result = fp.attack(run, target="membership")
    holding = [
        path
        for folder in (run.folder, result.folder)
        for path in folder.rglob("*")
        if path.is_file() and GIVEN.encode() in path.read_bytes()
    ]
    assert set(holding) == {run.folder / "private" / "secret"}
    assert holding[0].stat().st_mode & 0o777 == 0o600
    assert run.settings.train.secret == secrets.fingerprint(GIVEN)


def test_a_run_is_taken_up_by_its_folder_alone(tmp_path, forgets):
    run = trained(tmp_path / "runs", secret="new")
    forgets()
    again = Run(run.folder)
    assert fp.attack(again, target="membership").card.n > 0
    forgets()
    config = {"train": {"secret": run.settings.train.secret}}
    assert trained(tmp_path / "runs", preset=()).name != run.name
    same = fp.train("fedgh", clients=6, rounds=2, seed=3, runs=tmp_path / "runs",
                    set={**SMALL, "train.secret": config["train"]["secret"]})  # fmt: skip
    assert same.name == run.name


def test_what_is_no_secret_is_refused_before_compute(tmp_path, forgets):
    file = tmp_path / "secret"
    file.write_text("password")
    with pytest.raises(ConfigError, match="32 hexadecimal digits"):
        trained(tmp_path / "runs", secret=file)
    with pytest.raises(ConfigError, match="there is no file"):
        trained(tmp_path / "runs", secret=tmp_path / "absent")
    with pytest.raises(MissingInputError, match="--secret"):
        fp.train("fedgh", clients=6, rounds=2, set={**SMALL, "train.secret": "0" * 16},
                 runs=tmp_path / "runs")  # fmt: skip
    assert not (tmp_path / "runs").exists()


def test_a_changed_secret_is_noticed(tmp_path, forgets):
    run = trained(tmp_path / "runs", secret="new")
    (run.folder / "private" / "secret").write_text(GIVEN)
    forgets()
    with pytest.raises(DamagedInputError):
        fp.attack(Run(run.folder), target="membership")


def test_what_an_attacker_is_told_of_training_names_no_secret(tmp_path, forgets):
    run = trained(tmp_path / "runs", secret="new")
    from fedre_privacy.experiments.attack import prepare_attack
    from fedre_privacy.runs.resolution import resolve_attack

    settings = resolve_attack({"target": "membership", "threat": "strong"}, {}, [])
    trial = prepare_attack(run, settings)
    assert run.settings.train.secret not in repr(trial.observation.rehearse)
    assert torch.is_tensor(trial.observation.candidates.images)
