"""One call attacks one's own module: any module, with clear refusals, and nothing written."""

from __future__ import annotations

import base64
import copy
import re
from dataclasses import dataclass
from urllib.parse import unquote

import pytest
import torch
from torch import Tensor, nn

import fedre_privacy as fp
from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.pixel import PixelInversion
from fedre_privacy.core.errors import ConfigError, FedreError, IncompatibleError, MissingInputError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

SHAPE = (1, 12, 12)
QUICK = {"device": "cpu", "attack": PixelInversion(steps=60, tv=0.0)}


@dataclass(frozen=True, kw_only=True)
class Vandal(PixelInversion):
    """Spoils what it is given."""

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        observation.target_rows()[0].zero_()
        with torch.no_grad():
            for parameter in observation.extractors[0, 1].parameters():
                parameter.zero_()
        return super().run(observation, context)


class Pair(nn.Module):
    """Returns the representation and something else."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        found = self.inner(images)
        return found, found.sum()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(60, *SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def extractor() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 144)).eval()


@pytest.fixture
def reps(extractor: nn.Module, images: Tensor) -> Tensor:
    return extractor(images[:8]).detach()


def test_the_smallest_question_has_the_smallest_answer(extractor, reps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = fp.attack_module(extractor, representations=reps, image_shape=SHAPE, **QUICK)
    assert found.images.shape == (8, *SHAPE)
    assert found.verdict().startswith("not scored: no truth was given")
    assert "residual to the own target" in str(found) and "not scored" in found._repr_html_()
    assert float(found.frame()["residual"].median()) < float(found.frame()["mismatched"].median())
    assert list(tmp_path.iterdir()) == [] and found.isolation == "same-process"


@pytest.mark.slow
def test_a_notebook_shows_table_picture_and_page(extractor, reps, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"representations": reps, "truth": images[:8], "public": images[8:]}
    shown = fp.attack_module(extractor, **given, **QUICK)._repr_html_()
    assert shown.count("<table") == 1 and "PSNR" in shown and "Give folder=" in shown
    (data,) = re.findall(r'<img alt="[^"]+" src="data:image/png;base64,([^"]+)">', shown)
    assert base64.b64decode(data).startswith(b"\x89PNG")
    kept = fp.attack_module(extractor, **given, **QUICK, folder="mine & yours")._repr_html_()
    (page,) = re.findall(r'href="([^"]+)"', kept)
    assert (tmp_path / unquote(page)).is_file() and "mine &amp; yours" in kept


def test_truth_and_public_images_give_scores_floors_and_a_verdict(extractor, reps, images):
    settings = {"name": "pixel", "steps": 400, "tv": 0.0}
    found = fp.attack_module(
        extractor, representations=reps, truth=images[:8], public=images[8:], attack=settings,
        device="cpu",
    )  # fmt: skip
    assert found.verdict().startswith("leaks: the 8 representations: 8 of 8 found among ")
    assert "shown for representations like these and for these images" in found.verdict()
    assert "client" not in found.verdict()
    assert [row["metric"] for row in found.table()][0] == "PSNR dB" and "floor" in found.table()[0]
    mse = (found.images - images[:8]).square().mean((1, 2, 3))
    psnr = torch.tensor(found.frame()["psnr"].to_numpy())
    assert torch.allclose(psnr, -10 * mse.double().log10(), atol=1e-3)
    assert found.figure().axes
    assert Knowledge.AUX_DATA in found.trial.observation.threat.grants


@pytest.mark.slow
def test_images_of_any_number_of_channels_are_scored_and_those_that_can_are_drawn(tmp_path):
    images = torch.rand(20, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    flat = nn.Flatten()
    found = fp.attack_module(
        flat, representations=flat(images[:2]), truth=images[:2], public=images[2:],
        metrics=["psnr"], folder=tmp_path / "two", **QUICK,
    )  # fmt: skip
    assert "the 2 representations: 2 of 2 found" in found.verdict()
    assert not (tmp_path / "two" / "figure.png").exists()
    assert (tmp_path / "two" / "report.html").is_file()


def test_the_floors_are_what_an_answer_from_no_upload_scores(extractor, images):
    """Representations that say nothing: all equal, so nothing is better than the floor."""
    blind = nn.Sequential(extractor, nn.Linear(144, 4)).eval()
    nn.init.zeros_(blind[1].weight)
    found = fp.attack_module(
        blind, representations=torch.ones(8, 4), truth=images[:8], public=images[8:], **QUICK
    )
    assert not found.verdict().startswith("leaks")


def test_prototypes_know_by_class_which_images_made_them(extractor, images):
    classes = torch.arange(12) % 2
    with torch.no_grad():
        every = extractor(images[:12])
    means = torch.stack([every[classes == label].mean(0) for label in (1, 0)])
    found = fp.attack_module(
        extractor, prototypes=means, labels=[1, 0], truth=images[:12], truth_labels=classes,
        public=images[12:], public_labels=torch.arange(48) % 2, **QUICK,
    )  # fmt: skip
    assert found.frame()["support_size"].tolist() == [6, 6]
    assert found.frame()["label"].tolist() == [1, 0]
    mixture = found.trial.groups["target"].truth.mixture
    assert mixture.support(0).tolist() == [1, 3, 5, 7, 9, 11]


@pytest.mark.parametrize("named", [True, False])
def test_a_gradient_gives_its_images_away(images, named):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 10))
    labels = torch.tensor([3, 1])
    loss = nn.functional.cross_entropy(model(images[:2]), labels)
    sent = torch.autograd.grad(loss, list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    found = fp.attack_module(
        model, gradient=dict(zip(names, sent, strict=True)) if named else sent, labels=labels,
        truth=images[:2], public=images[8:], attack={"name": "inverting-gradients", "steps": 200},
        device="cpu",
    )  # fmt: skip
    assert float(found.frame()["psnr"].min()) > float(found.frame()["psnr_floor"].max())
    assert sorted(found.outcome.labels.tolist()) == [1, 3]
    assert "1 gradient" in found.verdict()
    assert Knowledge.TRAINING not in found.trial.observation.threat.grants
    without = fp.attack_module(
        model, gradient=sent, images=2, image_shape=SHAPE, attack="analytic", device="cpu"
    )
    assert without.images.shape == (2, *SHAPE) and without.frame().columns.tolist()[-2:] == [
        "fit",
        "confidence",
    ]


def test_a_module_in_training_mode_is_attacked_as_it_evaluates_and_left_alone(images):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(144, 32), nn.BatchNorm1d(32), nn.Dropout(0.5)
    ).double()
    module(images[8:].double())  # moves the running statistics
    before = copy.deepcopy(module.state_dict())
    with torch.no_grad():
        reps = module.eval()(images[:3].double())
    seen: list[int] = []
    module.train().register_forward_hook(lambda *_: seen.append(1))
    found = fp.attack_module(module, representations=reps, image_shape=SHAPE, **QUICK)
    assert "training mode" in found.notes[0] and "running statistics" in str(found)
    assert module.training and all(p.requires_grad for p in module.parameters())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert seen  # hooks are part of the module
    again = fp.attack_module(module.eval(), representations=reps, image_shape=SHAPE, **QUICK)
    assert torch.equal(again.images, found.images) and again.notes == ()


def test_an_attack_gets_copies(extractor, reps):
    before, given = copy.deepcopy(extractor.state_dict()), reps.clone()
    found = fp.attack_module(
        extractor, representations=reps, image_shape=SHAPE, attack=Vandal(steps=2), device="cpu"
    )
    assert all(torch.equal(before[name], value) for name, value in extractor.state_dict().items())
    assert torch.equal(reps, given) and float(found.frame()["residual"].min()) > 0


@pytest.mark.slow
def test_a_folder_is_written_where_one_is_asked_for(extractor, reps, tmp_path):
    given = {"representations": reps, "image_shape": SHAPE, **QUICK}
    found = fp.attack_module(extractor, folder=tmp_path / "mine", **given)
    written = {path.name for path in (tmp_path / "mine").iterdir()}
    assert {"recovered.safetensors", "record.json", "scores.csv", "report.html"} <= written
    assert "NOT SCORED" in (tmp_path / "mine" / "report.html").read_text()
    assert torch.equal(found.images, fp.attack_module(extractor, **given).images)
    with pytest.raises(ConfigError, match="holds something already"):
        fp.attack_module(extractor, folder=tmp_path / "mine", **given)


def conv_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 10)
    ).eval()


def sent_of(model: nn.Module, images: Tensor, *, every: bool = False) -> dict[str, Tensor]:
    """The gradient of one image of class 3 by name."""
    own = {n: p for n, p in model.named_parameters() if every or p.requires_grad}
    loss = nn.functional.cross_entropy(model(images[:1]), torch.tensor([3]))
    return dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))


GRADIENTS = {
    "frozen stem": lambda sent: {n: v for n, v in sent.items() if not n.startswith("0.")},
    "head alone": lambda sent: {n: v for n, v in sent.items() if n.startswith("4.")},
    "adapters alone": lambda sent: {n: v for n, v in sent.items() if n.startswith("1.")},
    "None by name": lambda sent: {**sent, "1.weight": None},
    "None in a list": lambda sent: [None, None, *list(sent.values())[2:]],
    "zeros of frozen ones": lambda sent: {**sent, "0.weight": torch.zeros(4, 1, 3, 3)},
    "DataParallel": lambda sent: {f"module.{n}": v for n, v in sent.items()},
    "torch.compile": lambda sent: {f"_orig_mod.{n}": v for n, v in sent.items()},
}
SAID = {"DataParallel": "module.", "torch.compile": "_orig_mod."}


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_of_some_parameters_are_attacked_and_told(images, case):
    model = conv_net()
    found = fp.attack_module(
        model, gradient=GRADIENTS[case](sent_of(model, images)), labels=[3], truth=images[:1],
        public=images[8:], attack={"name": "inverting-gradients", "steps": 3, "bn": "eval"},
        metrics=["psnr"], device="cpu",
    )  # fmt: skip
    word = SAID.get(case, "left out of the match")
    assert any(word in note for note in found.notes), found.notes
    assert word in found.trial.lines()["Attacker"]
    assert found.outcome.labels.tolist() == [3]


def test_a_list_of_what_took_a_gradient_is_the_same_as_its_names(images):
    model = conv_net()
    model[0].requires_grad_(False)
    sent = sent_of(model, images)
    assert len(sent) == 4
    one, other = (
        fp.attack_module(
            model, gradient=given, images=1, image_shape=SHAPE, device="cpu",
            attack={"name": "inverting-gradients", "steps": 3, "bn": "eval"},
        )
        for given in (sent, list(sent.values()))
    )  # fmt: skip
    assert torch.equal(one.images, other.images) and one.notes == other.notes


def test_a_masked_gradient_is_told_and_a_whole_one_is_not(images):
    model, rng = conv_net(), torch.Generator().manual_seed(0)
    sent = sent_of(model, images)
    cut = {n: v * (torch.rand(v.shape, generator=rng) < 0.2) for n, v in sent.items()}
    given = {"images": 1, "image_shape": SHAPE, "device": "cpu",
             "attack": {"name": "inverting-gradients", "steps": 3, "bn": "eval"}}  # fmt: skip
    said = fp.attack_module(model, gradient=cut, **given)
    assert "adaptive to masked uploads" in said.trial.lines()["Attacker"]
    whole = fp.attack_module(model, gradient=sent, **given)
    assert "masked" not in " ".join([*whole.notes, whole.trial.lines()["Attacker"]])


def test_sums_of_representations_are_told(extractor, images):
    means = extractor(images[:8]).detach()
    given = {"labels": range(8), "image_shape": SHAPE, "public": images[8:], "device": "cpu",
             "attack": PixelInversion(steps=2)}  # fmt: skip
    said = fp.attack_module(extractor, prototypes=12 * means, **given).notes
    assert len(said) == 1 and "sums in place of means, or scaled?" in said[0]
    assert fp.attack_module(extractor, prototypes=means, **given).notes == ()


TRUTH = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(1))
PUBLIC = torch.rand(9, *SHAPE, generator=torch.Generator().manual_seed(2))
REFUSED = {
    "nothing": ({"representations": None}, ConfigError, "got none"),
    "two": ({"prototypes": torch.ones(2, 144)}, ConfigError, "got representations, prototypes"),
    "width": ({"representations": torch.ones(8, 5)}, IncompatibleError, "have 5.*returns 144"),
    "maps": ({"representations": torch.ones(8, 4, 6, 6)}, IncompatibleError, "nn.Flatten"),
    "NaN": ({"representations": torch.full((8, 144), torch.nan)}, IncompatibleError, "NaN"),
    "size": ({"image_shape": (1, 13, 12)}, IncompatibleError, "fails on images 1x13x12"),
    "no size": ({"image_shape": None}, ConfigError, r"Give image_shape=\(C, H, W\)"),
    "odd size": ({"image_shape": (12, 12)}, ConfigError, "three whole numbers"),
    "labels": ({"representations": None, "prototypes": torch.ones(2, 144)}, IncompatibleError,
               "Give labels="),
    "named labels": ({"labels": ["cat"] * 8}, IncompatibleError, "labels are whole numbers"),
    "few labels": ({"labels": [1, 2]}, IncompatibleError, "2 labels were given for 8"),
    "no public": ({"truth": TRUTH}, MissingInputError, "Give some: public=images"),
    "few truth": ({"truth": TRUTH[:5], "public": PUBLIC}, IncompatibleError, "5 true images for 8"),
    "shared": ({"truth": TRUTH, "public": TRUTH}, IncompatibleError, "8 of 8 public images"),
    "range": ({"truth": TRUTH * 9, "public": PUBLIC}, IncompatibleError, "truth: images range"),
    "attack": ({"attack": "dipp"}, ConfigError, "Did you mean 'dip'"),
    "setting": ({"attack": {"name": "dip", "stepps": 3}}, ConfigError, "Did you mean"),
    "question": ({"attack": "membership"}, IncompatibleError, "asked for images"),
    "kind": ({"attack": "dlg"}, IncompatibleError, "reads nothing of a Sequential"),
    "aux": ({"attack": "linear"}, IncompatibleError, "needs AUX-DATA"),
    "a sandbox": ({"isolation": "strict"}, ConfigError, "cannot be handed"),
    "gradient": ({"representations": None, "gradient": [torch.ones(3)], "labels": [1]},
                 IncompatibleError, "1 tensors; the module has 2 parameters"),
    "names": ({"representations": None, "gradient": {"1.weight": torch.ones(3)}, "labels": [1]},
              IncompatibleError, "does not fit the network: '1.weight' is.*'1.bias' was not sent"),
    "batch": ({"representations": None, "gradient": [torch.ones(144, 144), torch.ones(144)]},
              IncompatibleError, "Give labels=, or images="),
}  # fmt: skip


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_does_not_fit_is_refused_in_one_sentence(extractor, reps, case):
    more, kind, text = REFUSED[case]
    given = {"representations": reps, "image_shape": SHAPE, "device": "cpu", **more}
    with pytest.raises(kind, match=f"(?s){text}"):
        fp.attack_module(extractor, **given)


def test_modules_that_return_something_else_or_cannot_be_copied(extractor, reps):
    def refused(module: nn.Module) -> str:
        with pytest.raises(FedreError) as error:
            fp.attack_module(module, representations=reps, image_shape=SHAPE, **QUICK)
        return str(error.value)

    assert "returns a tuple" in (said := refused(Pair(extractor))) and "forward returns" in said
    assert "(2, 1, 6, 6)" in (said := refused(nn.AvgPool2d(2))) and "nn.Flatten()" in said
    extractor.kept = extractor(torch.rand(2, *SHAPE))  # a tensor of a graph cannot be copied
    assert "cannot be copied" in refused(extractor)
    with pytest.raises(ConfigError, match="needed is an nn.Module"):
        fp.attack_module(lambda x: x, representations=reps, image_shape=SHAPE)


FLAT = nn.Flatten()


def attacked_with(truth, public, **more):
    """A module that returns its input, attacked with images as somebody holds them."""
    return fp.attack_module(
        FLAT, representations=FLAT(TRUTH), truth=truth, public=public, metrics=["psnr"],
        **QUICK, **more,
    )  # fmt: skip


def test_images_with_channels_last_are_turned_and_a_note_says_so():
    found = attacked_with(TRUTH.permute(0, 2, 3, 1), PUBLIC.permute(0, 2, 3, 1))
    assert found.images.shape == TRUTH.shape
    assert torch.equal(found.images, attacked_with(TRUTH, PUBLIC).images)
    assert "truth (8, 12, 12, 1) was read with channels last" in str(found)


def test_public_images_settle_the_axes_of_true_ones():
    three = attacked_with(TRUTH, PUBLIC[:3, 0], image_shape=(1, 12, 12))
    assert three.images.shape == TRUTH.shape
    with pytest.raises(IncompatibleError, match="several grey ones(?s:.)*image_shape="):
        attacked_with(TRUTH, PUBLIC[:3, 0])
    few = fp.attack_module(
        FLAT, representations=FLAT(TRUTH[:3]), truth=TRUTH[:3, 0], public=PUBLIC, **QUICK
    )
    assert few.images.shape == (3, 1, 12, 12)


def test_half_precision_and_numbers_of_64_bits_are_taken():
    expected = attacked_with(TRUTH, PUBLIC)
    for kind in (torch.float64, torch.bfloat16):
        found = attacked_with(TRUTH.to(kind), PUBLIC.to(kind))
        assert torch.equal(found.images, expected.images), "the attack does not read the truth"


def test_bytes_that_may_be_numbers_are_refused():
    with pytest.raises(IncompatibleError, match="public is uint8 with values 0..1"):
        attacked_with(TRUTH, (PUBLIC > 0.5).to(torch.uint8))
    with pytest.raises(IncompatibleError, match="truth holds int64"):
        attacked_with((TRUTH > 0.5).long(), PUBLIC)
