"""Messages, samples, and the random streams of a step."""

import pytest
import torch

from fedre_privacy.core.artifacts import HeadState, Prototypes
from fedre_privacy.core.rng import secret
from fedre_privacy.protocols.blocks import state
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


def numbered(count: int = 12) -> Samples:
    pixels = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    return Samples(pixels.contiguous(), torch.arange(count) % 3)


def test_samples_taken_of_samples_share_their_pixels():
    whole = numbered()
    some = whole.take(torch.tensor([7, 2, 2, 11]))
    fewer = some.take(torch.tensor([True, False, True, True]))
    assert some.pool is whole.pool and fewer.pool is whole.pool
    assert whole.images.data_ptr() == whole.pool.data_ptr()
    assert some.images[:, 0, 0, 0].tolist() == [7, 2, 2, 11] and len(some) == 4
    assert fewer.images[:, 0, 0, 0].tolist() == [7, 2, 11] and fewer.labels.tolist() == [1, 2, 2]
    images, labels = fewer.batch(torch.tensor([2, 0]))
    assert torch.equal(images[:, 0, 0, 0], torch.tensor([11, 7]) / 255)
    assert labels.tolist() == [2, 1]
    assert torch.equal(fewer.batch(slice(1, 3))[0], fewer.batch(torch.tensor([1, 2]))[0])


@pytest.mark.parametrize("hashed", [1, 5, 256])
def test_shared_pixels_have_the_fingerprint_of_a_copy(hashed, monkeypatch):
    monkeypatch.setattr(state, "HASHED", hashed)
    chosen = torch.tensor([3, 9, 1, 0, 4, 8])
    whole = numbered()
    copied = Samples(whole.images[chosen].clone(), whole.labels[chosen])
    expected = secret(0, "samples", copied.images, copied.labels)
    assert whole.take(chosen).fingerprint() == copied.fingerprint() == expected
    assert whole.take(chosen.flip(0)).fingerprint() != expected
    nobody = whole.take(torch.arange(0))
    assert nobody.fingerprint() == secret(0, "samples", nobody.images, nobody.labels)
