"""Questions end to end on a tiny run: what the attacker gets, what is scored, what is written."""

import dataclasses
import json
import math
from dataclasses import replace

import pandas as pd
import pytest
import torch

from fedre_privacy.attacks.pixel import PixelInversion
from fedre_privacy.core.artifacts import (
    Counts,
    EntangledRep,
    MatrixBlocks,
    ModelState,
    Prototypes,
)
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate
from fedre_privacy.core.types import Knowledge
from fedre_privacy.eval.label_scores import evaluate_labels
from fedre_privacy.experiments.attack import attack, prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.experiments.questions.prototypes import PrototypesQuestion
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train


@pytest.fixture(scope="module")
def kept(tiny, tmp_path_factory):
    """A run of fedre that kept every round's extractors."""
    settings = tiny(protocol="fedre", train={"rounds": 5}, record={"keep_every": 1})
    return train(settings, runs=tmp_path_factory.mktemp("kept"))


def ask(target="uploaded", name=None, threat="strong", **more):
    problems: list[str] = []
    values = {"target": target, "threat": threat, **more}
    if name:
        values["attack"] = {"name": name} if isinstance(name, str) else name
    settings = resolve_attack(values, {}, problems)
    if settings is None or problems:
        raise ConfigError(*problems)
    return settings


def test_labels_are_compared_with_the_true_counts(kept):
    result = attack(kept, ask("labels", threat="realistic"))
    assert result.card.verdict.word == "inconclusive"
    assert "3 clients of at least 5 needed" in result.verdict()
    assert result.card.get("jaccard").value == 1.0  # an encoding names the classes exactly
    counts = torch.tensor(kept.record["class_counts"])
    assert list(result.frame()["classes"]) == (counts > 0).sum(1).tolist()
    record = json.loads((result.folder / "record.json").read_text())
    assert record["measures"][0]["key"] == "jaccard" and record["status"] == "complete"
    assert result.figure().axes


def test_labels_of_enough_clients_leak_or_do_not():
    counts = torch.tensor([[9, 0, 0, 3], [0, 5, 5, 0], [8, 4, 0, 0], [0, 0, 8, 8], [2, 0, 6, 0],
                           [0, 7, 0, 1]])  # fmt: skip
    shares = counts / counts.sum(1, keepdim=True)
    for said, expected in (
        (shares, "leaks"),
        (torch.full((6, 4), 0.25), "inconclusive"),  # six clients bound nothing
    ):
        estimate = LabelEstimate(
            torch.arange(6), (said > 0).float(), said, counts.sum(1).float(), ()
        )
        assert evaluate_labels(estimate, counts).verdict.word == expected


def test_prototypes_that_are_given_up_stay_in_the_mean(kept):
    result = attack(kept, ask("uploaded", "disentangle"))
    trial, outcome = result.trial, result.outcome
    answered = outcome.vectors.isfinite().all(1).nonzero().squeeze(1)
    assert len(answered) > 4
    vectors = outcome.vectors.clone()
    vectors[answered[::2]] = torch.nan
    quits = PrototypesQuestion().score(trial, dataclasses.replace(outcome, vectors=vectors))
    assert quits.diverged > result.card.diverged
    for key, sign in (("identified", 1), ("centred_cosine", 1), ("relative_error", -1)):
        before, after = result.card.get(key), quits.get(key)
        assert after.n == before.n
        assert sign * after.value < sign * before.value


@pytest.mark.slow
def test_a_finished_answer_of_every_kind_is_read_back(kept):
    for target, name in (("labels", None), ("membership", None), ("uploaded", "disentangle")):
        first = attack(kept, ask(target, name))
        again = attack(kept, ask(target, name))
        assert again.table() == first.table() and again.folder == first.folder
        one, other = first.outcome.save(), again.outcome.save()
        assert one[1] == other[1] and one[0].keys() == other[0].keys()
        for key, tensor in one[0].items():
            torch.testing.assert_close(tensor, other[0][key], equal_nan=True, rtol=0, atol=0)


@pytest.mark.slow
def test_how_far_restarts_end_apart_is_told_of_every_target(kept):
    pixel = {"name": "pixel", "steps": 3}
    once = attack(kept, ask("prototypes", pixel)).frame()
    result = attack(kept, ask("prototypes", {**pixel, "restarts": 2}))
    told = result.frame()
    assert "spread" not in once and bool((told["spread"] > 0).all())
    assert set(told["group"]) == {"target", "actual"}  # of one image each: no ceiling
    assert told["spread"].tolist() == result.outcome.spread.tolist()


@pytest.mark.slow
def test_membership_asks_about_members_and_others_of_the_same_classes(kept):
    trial = prepare_attack(kept, ask("membership"))
    counts = torch.tensor(kept.record["class_counts"])
    asked = trial.candidates
    assert bool((counts[asked.clients, asked.labels] > 0).all())
    assert torch.equal(trial.class_sizes, counts[asked.clients, asked.labels])
    assert 0 < int(trial.members.sum()) < len(asked)
    # what the attacker gets does not say who is a member
    assert trial.observation.candidates is asked and not hasattr(asked, "members")
    card = attack(kept, ask("membership")).card
    auc = card.measures[0]
    assert auc.key == "auc" and auc.floor is not None and auc.n > 0
    assert math.isclose(auc.over, auc.value - auc.floor, abs_tol=1e-9)


@pytest.mark.slow
def test_what_the_model_and_the_image_tell_alone_are_floors_of_their_own(kept):
    card = attack(kept, ask("membership")).card
    lines = {row["metric"]: row for row in card.table() if row["classes of"] == "all"}
    assert lines["AUC"]["floor"].endswith("] (the model alone)")
    alone = lines["AUC over the image alone"]
    assert alone["floor"].endswith("] (image alone)") and " [" in alone["better than a guess?"]
    assert alone["this attack"] == lines["AUC"]["this attack"]
    assert "over the model alone" in card.verdict.rule


BEFORE = "the model before the upload"
SENT = {
    "fedavg": "realistic",
    "fedsgd": "realistic",
    "fml": "realistic",
    "fedkd": "realistic",
    "lg-fedavg": "fedre-paper",
}


@pytest.mark.parametrize("protocol", SENT)
@pytest.mark.slow
def test_membership_is_asked_of_models(tiny, tmp_path, protocol):
    run = train(tiny(protocol=protocol), runs=tmp_path)
    uploads = run.settings.protocol.uploads
    problems: list[str] = []
    values = {"target": "membership", "threat": SENT[protocol]}
    settings = resolve_attack(values, {}, problems, uploads=uploads)
    assert settings.attack.name == "loss-membership" and not problems
    result = attack(run, settings)
    trial, card = result.trial, result.card
    assert card.n == len(trial.members) >= 12 and card.diverged == 0
    half = protocol == "lg-fedavg"  # whose extractor is granted, and tells by itself
    name = "what is granted, with the broadcast before the upload" if half else BEFORE
    names = {"auc": "image alone", "auc_over_model": name}
    if half:
        names = {"auc": name, "auc_over_image": "image alone"}
    for key, floor in names.items():
        assert card.get(key).floor_name == floor
        assert card.get(key).floor_text().endswith(f"] ({floor})")
    auc = card.get("auc")
    leaks = auc.interval[0] > 0.5 and auc.over_interval[0] > 0
    assert (card.verdict.word == "leaks") == leaks
    assert {"baseline", "floor", "member", "score"} <= set(result.frame())
    assert result.figure().axes


def test_before_the_upload_is_the_broadcast(tiny, tmp_path):
    run = train(tiny(protocol="fedavg"), runs=tmp_path)
    trial = prepare_attack(run, ask("membership", "loss-membership"))
    asked = trial.candidates
    with torch.no_grad():
        model = trial.observation.models[0, 2]
        mine = asked.clients == 0
        logits = model(asked.images[mine])
    expected = -torch.nn.functional.cross_entropy(logits, asked.labels[mine], reduction="none")
    torch.testing.assert_close(trial.baseline[mine].float(), expected, rtol=1e-4, atol=1e-5)
    same = type(trial.settings.attack)(score="loss")(
        replace(
            trial.observation,
            targets=tuple(
                replace(upload, artifacts=trial.observation.broadcasts[-1].artifacts)
                for upload in trial.observation.targets
            ),
        )
    )
    torch.testing.assert_close(same.scores, trial.baseline.float())


def test_recovered_prototypes_are_compared_with_the_true_ones(kept):
    result = attack(kept, ask("uploaded", "disentangle"))
    rows = result.frame()
    counts = torch.tensor(kept.record["class_counts"])
    assert len(rows) == int((counts > 0).sum())
    assert {"centred_cosine", "centred_cosine_upload", "centred_cosine_public"} <= set(rows)
    table = {row["metric"]: row for row in result.table() if row["classes of"] == "all"}
    assert "(" in table["centred cosine"]["floor"]  # every score names its floor
    assert result.card.get("s_min").value >= 0


@pytest.mark.slow
def test_recovered_prototypes_are_targets_of_an_image_attack(kept):
    pixel = {"name": "pixel", "steps": 3}
    settings = ask("recovered-prototypes", pixel, eval={"targets": 6, "ceiling": 2})
    assert settings.via.name == "disentangle"
    result = attack(kept, settings)
    trial = result.trial
    assert list(trial.groups) == ["target", "true", "actual", "ceiling"]
    target, true = trial.groups["target"], trial.groups["true"]
    assert torch.equal(target.truth.target_labels, true.truth.target_labels)
    assert torch.equal(target.truth.target_clients, true.truth.target_clients)
    assert not trial.counterfactual and true.counterfactual
    assert any(isinstance(a, EntangledRep) for u in trial.observation.uploads for a in u.artifacts)
    groups = {m.group for m in result.card.measures if m.key == "psnr"}
    assert {"", "actual", "true", "ceiling"} <= groups
    assert (result.folder / "prototypes.safetensors").is_file()
    groups = set(pd.read_csv(result.folder / "scores.csv")["group"])
    assert groups == {"target", "true", "actual", "ceiling"}


class OnlyPrototypes(PixelInversion):
    """Reads no single representation and no entangled one."""

    consumes = (Prototypes,)


def test_what_stands_beside_the_targets_is_what_the_attack_reads(kept):
    settings = replace(ask("prototypes", "pixel"), attack=OnlyPrototypes(steps=3))
    assert list(prepare_attack(kept, settings).groups) == ["target"]


def test_only_targets_of_few_images(kept):
    trial = prepare_attack(kept, ask("prototypes", "pixel", eval={"max_images": 3}))
    sizes = torch.bincount(trial.groups["target"].truth.mixture.row)
    assert sizes.max() <= 3
    everything = {"targets": 1000, "fewest_first": False}
    whole = prepare_attack(kept, ask("prototypes", "pixel", eval=everything))
    all_sizes = torch.bincount(whole.groups["target"].truth.mixture.row)
    assert int((all_sizes <= 3).sum()) == len(sizes)


def test_targets_of_the_fewest_images_come_first(kept):
    def sizes(**eval):
        trial = prepare_attack(kept, ask("prototypes", "pixel", eval=eval))
        return torch.bincount(trial.groups["target"].truth.mixture.row).sort().values

    drawn = {"fewest_first": False}
    least = sizes(targets=4, fewest_first=True)
    assert least.tolist() == sizes(targets=1000, **drawn)[:4].tolist()
    assert least.sum() < sizes(targets=4, **drawn).sum()


def test_prototypes_of_one_image_are_attacked_alone_where_there_are_six(kept):
    def asked(target="prototypes", **eval):
        return prepare_attack(kept, ask(target, "pixel", eval=eval))

    def single(trial):
        return int((torch.bincount(trial.groups["target"].truth.mixture.row) == 1).sum())

    alone, whole = asked(), asked(targets=1000, fewest_first=False)
    assert alone.groups["target"].single and not whole.groups["target"].single
    assert len(alone.groups["target"]) == single(whole) >= 6
    assert "those of one image alone" in alone.lines()["Target"]
    assert "ceiling" not in alone.groups and "ceiling" in whole.groups
    for others in (asked(max_images=3), asked(fewest_first=True), whole):
        assert not others.groups["target"].single
        assert "one image alone" not in others.lines()["Target"]


def test_a_weak_threat_model_sees_no_past_extractors(kept):
    paper = prepare_attack(kept, ask("uploaded", "disentangle", threat="fedre-paper"))
    assert {r for _, r in paper.observation.extractors} == {5}
    assert {u.round for u in paper.observation.uploads} == {5}
    strong = prepare_attack(kept, ask("uploaded", "disentangle"))
    assert {r for _, r in strong.observation.extractors} == {1, 2, 3, 4, 5}
    with pytest.raises(KeyError):
        strong.observation.extractors[99, 1]
    eaves = prepare_attack(kept, ask("labels", threat="eavesdropper"))
    assert len(eaves.observation.extractors) == 0 and eaves.observation.training is None
    assert eaves.observation.broadcasts == ()


def test_who_uploads_a_model_gives_its_extractor_away(tiny, tmp_path):
    run = train(tiny(protocol="fedavg"), runs=tmp_path)
    trial = prepare_attack(run, ask("prototypes", "pixel", threat="realistic"))
    assert Knowledge.EXTRACTOR in trial.observation.threat.grants
    assert "this protocol hands over" in trial.lines()["Attacker"]
    key = (0, 2)
    assert key in trial.observation.models
    sent = trial.observation.broadcasts[-1].artifacts[0].params
    for name, value in trial.observation.models[key].named_parameters():
        assert torch.equal(value, sent[name])


def test_a_first_stage_that_does_not_fit_is_refused(kept, runs, tiny, tmp_path):
    with pytest.raises(IncompatibleError, match="would recover the prototypes"):
        prepare_attack(runs["fedgh"], ask("recovered-prototypes", "pixel"))
    run = train(tiny(protocol="lg-fedavg"), runs=tmp_path)
    with pytest.raises(IncompatibleError, match="would recover the prototypes") as refusal:
        prepare_attack(run, ask("recovered-prototypes", "pixel"))
    assert refusal.value.next_step == "Use --set via.name=head."
    with pytest.raises(ConfigError, match="answers images"):
        ask("recovered-prototypes", "pixel", via={"name": "dip"})
    with pytest.raises(ConfigError, match="'via' goes with target"):
        ask("prototypes", "pixel", via={"name": "disentangle"})


def test_an_upload_that_tells_no_labels_names_the_attack_that_asks_it(tiny, tmp_path):
    run = train(tiny(protocol="fedral"), runs=tmp_path)
    with pytest.raises(IncompatibleError, match="MatrixBlocks") as refusal:
        prepare_attack(run, ask("labels"))
    assert "--attack matrix" in str(refusal.value)


def test_a_guarantee_says_what_no_attack_on_images_exceeds(kept, tiny, tmp_path):
    run = train(tiny(protocol="fedgh", defense="gaussian:clip=1,epsilon=8"), runs=tmp_path)
    said = prepare_attack(run, ask("prototypes", "pixel")).lines()["Bound"]
    assert said.startswith("found among 100 at most 6.8% of the time by any attack")
    assert "Bound" not in prepare_attack(run, ask("representations", "pixel")).lines()  # not sent
    assert "Bound" not in prepare_attack(kept, ask("representations", "pixel")).lines()


@pytest.mark.parametrize(
    ("uploads", "threat", "name"),
    [
        ((MatrixBlocks, Counts), "strong", "matrix"),
        ((MatrixBlocks, Counts), "public-init", "initial-matrix"),
        ((Prototypes,), "strong", "labels"),
    ],
)
def test_the_usual_attack_on_labels_is_one_that_may_read_them(uploads, threat, name):
    problems: list[str] = []
    asked = resolve_attack({"target": "labels", "threat": threat}, {}, problems, uploads=uploads)
    assert asked is not None and not problems and asked.attack.name == name


@pytest.mark.parametrize(
    ("target", "uploads", "threat", "name"),
    [
        ("prototypes", (EntangledRep,), "strong", "ensemble-kalman"),
        ("representations", (ModelState,), "strong", "ensemble-kalman"),
        ("uploaded", (Prototypes,), "strong", "ensemble-kalman"),
        ("uploaded", (ModelState,), "strong", "dip"),
        ("prototypes", (Prototypes,), "fedre-paper", "dip"),
        ("uploaded", (Prototypes,), "realistic", "dip"),
    ],
)
def test_the_usual_attack_on_images_uses_public_ones_where_they_are_granted(
    target, uploads, threat, name
):
    problems: list[str] = []
    asked = resolve_attack({"target": target, "threat": threat}, {}, problems, uploads=uploads)
    assert asked is not None and not problems and asked.attack.name == name


def test_classes_behind_blocks_are_told_without_models_and_not_without_their_start(tiny, tmp_path):
    settings = tiny(protocol="fedral", train={"rounds": 2})
    check_ahead(settings, ask("labels", "initial-matrix", "public-init"))
    with pytest.raises(ConfigError, match="reads the first round alone, and 'eval.round' is 2"):
        check_ahead(settings, ask("labels", "initial-matrix", "public-init", eval={"round": 2}))
    private = tiny(protocol="fedral", train={"rounds": 2}, model={"init": "private"})
    with pytest.raises(
        IncompatibleError, match=r"nobody knows them\. Train with model\.init=shared"
    ):
        check_ahead(private, ask("labels", "initial-matrix", "public-init"))
    run = train(settings, runs=tmp_path)
    trial = prepare_attack(run, ask("labels", "initial-matrix", "public-init"))
    assert trial.round == 1 and not trial.observation.extractors and not trial.observation.heads
    with pytest.raises(IncompatibleError) as said:
        prepare_attack(run, ask("labels", "labels", "realistic"))
    assert (
        "--attack initial-matrix --threat public-init, or --attack matrix --threat strong"
        in str(said.value)
    )
