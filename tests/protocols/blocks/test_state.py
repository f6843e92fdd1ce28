"""Messages, samples, and the random streams of a step."""

import pytest
import torch

from fedre_privacy.core.artifacts import HeadState, Prototypes
from fedre_privacy.protocols.blocks.state import Samples, Setting, Task, Training, only_artifact

SETTING = Setting(Training(seed=3), 4, (1, 2, 2), (6,), ("tiny",), ((1,),), torch.device("cpu"))


def test_a_batch_is_float_in_the_unit_interval_and_a_copy():
    samples = Samples(
        torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1), torch.arange(3)
    )
    images, labels = samples.batch(torch.tensor([2, 1]))
    assert images.flatten().tolist() == pytest.approx([1.0, 0.2]) and images.dtype == torch.float32
    assert labels.tolist() == [2, 1] and len(samples) == 3
    images.zero_()
    assert samples.images.flatten().tolist() == [0, 51, 255]


def test_streams_belong_to_seed_client_round_and_purpose():
    def draw(task, purpose="batches"):
        return tuple(torch.rand(4, generator=task.rng(purpose)).tolist())

    task = Task(SETTING, round=2, client=1)
    assert draw(task) == draw(task)  # fresh each time: nobody else's draws matter
    other_seed = Setting(Training(seed=4), *list(vars(SETTING).values())[1:])
    others = [
        draw(Task(SETTING, 3, 1)),
        draw(Task(SETTING, 2, 0)),
        draw(Task(other_seed, 2, 1)),
        draw(task, "entangle"),
    ]
    assert len({draw(task), *others}) == 5


def test_only_finds_the_one_artifact_of_a_kind():
    head = HeadState({"weight": torch.ones(1)})
    protos = Prototypes(torch.ones(1, 2), torch.zeros(1).long())
    assert only_artifact((protos, head), HeadState) is head
    for message in ((), (protos,), (head, head)):
        with pytest.raises(LookupError, match="expected one HeadState"):
            only_artifact(message, HeadState)
