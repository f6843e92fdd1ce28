"""BatchNorm's statistics after local training, as they ran along or taken anew."""

import pytest
import torch
from torch import nn

from fedre_privacy.models.norm import running_norms, take_statistics
from fedre_privacy.protocols.blocks.local import recompute_statistics
from fedre_privacy.protocols.blocks.state import Samples
from fedre_privacy.runs.preparation import load_images
from fedre_privacy.runs.resolution import resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train

CHOICES = ("running", "recomputed")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.Dropout(0.5), nn.Flatten()
    )


def test_one_batch_gives_its_own_mean_and_variance():
    model, images = net(), torch.rand(20, 1, 8, 8)
    take_statistics(model, [images])
    found, wanted = model[1], model[0](images).detach()
    torch.testing.assert_close(found.running_mean, wanted.mean((0, 2, 3)))
    torch.testing.assert_close(found.running_var, wanted.transpose(0, 1).flatten(1).var(1))
    assert found.momentum == 0.3 and not any(part.training for part in model.modules())


def test_more_images_than_fit_into_a_pass_are_split_evenly():
    model, images = net(), torch.randint(256, (257, 1, 8, 8), dtype=torch.uint8)
    recompute_statistics([model, nn.Linear(2, 2)], Samples(images, torch.zeros(257)))
    wanted = model[0](images.float() / 255).detach().mean((0, 2, 3))
    torch.testing.assert_close(model[1].running_mean, wanted, atol=1e-3, rtol=1e-2)
    assert int(model[1].num_batches_tracked) == 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("statistics")

    def of(name: str, statistics: str) -> Run:
        problems: list[str] = []
        settings = resolve_training(
            {
                "protocol": {"name": "fedproto"},
                "data": {"name": "digits", "size": 32, "per_class": 12},
                "partition": {"name": "iid"},
                "model": {"name": name, "dim": 32},
                "train": {"clients": 2, "rounds": 1, "statistics": statistics},
            }, {}, problems,
        )  # fmt: skip
        assert settings is not None, problems
        return train(settings, runs=folder)

    return of


@pytest.mark.slow
def test_few_steps_leave_running_statistics_behind_and_new_ones_are_right(runs):
    off = {}
    for statistics in CHOICES:
        run = runs("resnet34", statistics)
        data, _ = load_images(run.settings)
        extractor, (own, _) = run.extractor(0, 1), run.split_indices()[0]
        images = data.floats(own)
        with torch.no_grad():
            found = extractor(images)
            for part in running_norms(extractor):
                part.train()
            wanted = extractor(images)
        off[statistics] = float((found - wanted).norm() / wanted.norm())
    assert off["recomputed"] < 0.1 and off["running"] > 0.5, off


def test_models_without_batch_norm_are_as_before(runs):
    ran, anew = (runs("cnn4", statistics).messages().of()[0] for statistics in CHOICES)
    sent = [[a.tensors() for u in uploads for a in u.artifacts] for uploads in (ran, anew)]
    for one, two in zip(*sent, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
