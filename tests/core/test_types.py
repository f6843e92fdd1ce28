"""What crosses the wire, where it came from, and what an attack is given."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedre_privacy.core.artifact_schema import Content
from fedre_privacy.core.artifacts import (
    AdapterState,
    Artifact,
    ClassLogits,
    ClassStatistics,
    Counts,
    EntangledRep,
    GeneratorState,
    GradientState,
    HeadState,
    LowRankChange,
    LowRankModel,
    MatrixBlocks,
    ModelChange,
    ModelState,
    Prototypes,
    Representations,
    RepStatistic,
    SmallModelState,
    wire,
)
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Mixture
from fedre_privacy.threats.base import threats

PARAMS = {"weight": torch.randn(3, 5), "bias": torch.zeros(3)}
EXAMPLES: list[Artifact] = [
    Representations(torch.randn(4, 5), torch.tensor([0, 2, 2, 1])),
    Prototypes(torch.randn(2, 5), torch.tensor([0, 2])),
    EntangledRep(torch.randn(5), torch.tensor([0.25, 0.0, 0.75])),
    HeadState(PARAMS),
    ModelState({"a.weight": torch.ones(2, 2), "a.bias": torch.ones(2, dtype=torch.float64)}),
    AdapterState(PARAMS),
    SmallModelState(PARAMS),
    GradientState(PARAMS),
    LowRankModel({"w.U": torch.ones(3, 1), "w.s": torch.ones(1), "w.V": torch.ones(1, 4)}),
    LowRankChange({"w.dense": torch.ones(3, 4)}),
    ModelChange(PARAMS),
    GeneratorState(PARAMS),
    MatrixBlocks(torch.randn(2, 3, 3)),
    ClassStatistics(
        torch.ones(2, 3), torch.tensor([4, 1]), torch.tensor([0, 2]), {"diagonal": torch.ones(2, 3)}
    ),
    ClassLogits(torch.randn(2, 4), torch.tensor([0, 3])),
    RepStatistic(torch.randn(5)),
    Counts(torch.tensor([7])),
]
ROWS = [a for a in EXAMPLES if a.rows() is not None]


def kind(artifact: Artifact) -> str:
    return artifact.kind


def test_every_kind_is_an_example():
    assert {a.kind for a in EXAMPLES} == {k for k in Artifact.kinds if k}


@pytest.mark.parametrize("artifact", EXAMPLES, ids=kind)
class TestArtifact:
    def test_round_trip(self, artifact):
        tensors = artifact.tensors()
        again = type(artifact).from_tensors(tensors)
        assert type(again) is type(artifact)
        assert again.tensors().keys() == tensors.keys()
        for name, tensor in again.tensors().items():
            assert torch.equal(tensor, tensors[name]) and tensor.dtype == tensors[name].dtype

    def test_an_absent_tensor_is_refused(self, artifact):
        tensors = artifact.tensors()
        if len(dataclasses.fields(artifact)) == 1:
            tensors.clear()
        else:
            tensors.popitem()
        with pytest.raises(ValueError, match=f"{type(artifact).__name__} needs.*absent: \\["):
            type(artifact).from_tensors(tensors)

    def test_an_extra_tensor_is_refused(self, artifact):
        with pytest.raises(ValueError, match=r"not known: \['sneaked'\]"):
            type(artifact).from_tensors({**artifact.tensors(), "sneaked": torch.ones(1)})

    def test_scalars_and_bytes(self, artifact):
        tensors, content = artifact.tensors(), artifact.content()
        assert content.keys() == tensors.keys()
        assert sum(artifact.scalars().values()) == sum(t.numel() for t in tensors.values())
        assert artifact.nbytes() == sum(len(t.numpy().tobytes()) for t in tensors.values())

    def test_detached_shares_nothing(self, artifact):
        source = type(artifact).from_tensors(
            {
                n: t.clone().requires_grad_() * 1 if t.is_floating_point() else t.clone()
                for n, t in artifact.tensors().items()
            }
        )
        copy = source.detached_copy()
        for name, tensor in source.tensors().items():
            other = copy.tensors()[name]
            assert torch.equal(other, tensor)
            assert other.grad_fn is None and not other.requires_grad
            assert other.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()

    def test_repr_names_kind_and_shapes(self, artifact):
        name, tensor = next(iter(artifact.tensors().items()))
        assert repr(artifact).startswith(f"{type(artifact).__name__}({name} {tuple(tensor.shape)}")


def test_scalars_by_content():
    counted = {a.kind: a.scalars() for a in EXAMPLES}
    assert counted["representations"] == {Content.REPRESENTATION: 20, Content.LABEL: 4}
    assert counted["prototypes"] == {Content.PROTOTYPE: 10, Content.LABEL: 2}
    assert counted["entangled"] == {Content.REPRESENTATION: 5, Content.LABEL_ENCODING: 3}
    assert counted["head"] == {Content.PARAMETERS: 18}
    assert counted["model"] == {Content.PARAMETERS: 6}
    assert EXAMPLES[0].nbytes() == 20 * 4 + 4 * 8
    assert EXAMPLES[4].nbytes() == 4 * 4 + 2 * 8


@pytest.mark.parametrize("artifact", ROWS, ids=kind)
def test_encodings_are_one_distribution_a_row(artifact):
    classes = artifact.outputs.shape[1] if isinstance(artifact, ClassLogits) else 3
    encodings = artifact.encodings(classes)
    assert encodings.shape == (len(artifact.rows()), classes)
    assert torch.allclose(encodings.sum(1), torch.ones(len(encodings)))
    if hasattr(artifact, "labels"):
        assert torch.equal(encodings.argmax(1), artifact.labels)
        assert set(encodings.unique().tolist()) == {0.0, 1.0}


def test_take_keeps_rows_in_the_order_given():
    reps = EXAMPLES[0]
    taken = reps.take(torch.tensor([3, 0]))
    assert torch.equal(taken.reps, reps.reps[[3, 0]])
    assert taken.labels.tolist() == [1, 0]
    entangled = EXAMPLES[2]
    assert torch.equal(entangled.take(torch.tensor([0])).rows(), entangled.rows())


def test_models_carry_no_rows():
    assert EXAMPLES[3].rows() is None and EXAMPLES[3].encodings(3) is None


def test_two_artifacts_cannot_share_a_kind():
    with pytest.raises(TypeError, match="'entangled' is already taken by EntangledRep"):

        class Other(Artifact):
            kind = "entangled"
            rep: Tensor = wire(Content.REPRESENTATION, "(d,)")

    assert Artifact.kinds["entangled"] is EntangledRep


# --- mixtures ----------------------------------------------------------------------------------


@st.composite
def mixtures(draw):
    """A mixture over up to 8 samples, each at most once a row, and the same as a dense matrix."""
    num_rows, samples = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    dense = torch.zeros(num_rows, samples, dtype=torch.float64)
    pairs = draw(
        st.lists(
            st.tuples(st.integers(0, num_rows - 1), st.integers(0, samples - 1)),
            unique=True,
            max_size=20,
        )
    )
    weights = draw(
        st.lists(
            st.sampled_from([0.0, 0.125, 0.5, 1.0, 2.0]),
            min_size=len(pairs),
            max_size=len(pairs),
        )
    )
    for (row, sample), weight in zip(pairs, weights, strict=True):
        dense[row, sample] = weight
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return Mixture(index[:, 0], index[:, 1], torch.tensor(weights), num_rows), dense


@given(mixtures())
@settings(deadline=None)
def test_support_is_what_entered_with_weight(pair):
    mixture, dense = pair
    for row in range(mixture.num_rows):
        expected = [i for i in range(dense.shape[1]) if dense[row, i] > 0]
        assert mixture.support(row).tolist() == expected


@given(mixtures(), st.sampled_from([(), (3,), (2, 1, 2)]))
@settings(deadline=None)
def test_mean_is_the_explicit_weighted_sum(pair, shape):
    mixture, dense = pair
    values = torch.arange(dense.shape[1] * 12.0, dtype=torch.float64).reshape(dense.shape[1], 12)
    values = values[:, : torch.Size(shape).numel()].reshape(-1, *shape)
    found = mixture.mean(values)
    assert found.shape == (mixture.num_rows, *shape) and found.dtype == torch.float64
    for row in range(mixture.num_rows):
        expected = torch.zeros(shape, dtype=torch.float64)
        for i in range(dense.shape[1]):
            expected = expected + dense[row, i] * values[i]
        assert torch.allclose(found[row], expected, atol=1e-12, rtol=1e-12)


def test_mean_of_pixels_is_not_rounded():
    mixture = Mixture(torch.tensor([0, 0]), torch.tensor([0, 1]), torch.tensor([0.5, 0.5]), 1)
    pixels = torch.tensor([[200], [255]], dtype=torch.uint8)
    assert mixture.mean(pixels).tolist() == [[227.5]]


@given(mixtures(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_select_renumbers_in_the_order_given(pair, random):
    mixture, dense = pair
    rows = random.sample(range(mixture.num_rows), random.randint(1, mixture.num_rows))
    found = mixture.select(torch.tensor(rows))
    again = torch.zeros(len(rows), dense.shape[1], dtype=torch.float64)
    for row, sample, weight in zip(found.row, found.sample, found.weight, strict=True):
        again[row, sample] += weight
    assert found.num_rows == len(rows) and torch.equal(again, dense[rows])


# --- threat models and observations ------------------------------------------------------------


def test_named_threat_models_grant_what_their_names_say():
    for name in threats.names():
        model = threats.get(name)
        assert model.name == name and model.summary and model.rounds in {"last", "all"}
        assert Knowledge.UPLOADS in model.grants
    assert Knowledge.EXTRACTOR not in threats.get("eavesdropper").grants
    assert Knowledge.EXTRACTOR not in threats.get("realistic").grants
    assert threats.get("strong").grants >= threats.get("fedre-paper").grants


def test_target_rows_name_their_owners(observe, rotation):
    net = rotation()
    artifacts = [
        Representations(torch.full((2, 4), 1.0), torch.zeros(2, dtype=torch.int64)),
        EntangledRep(torch.full((4,), 2.0), torch.ones(10) / 10),
        HeadState({"weight": torch.ones(2, 4)}),
        Prototypes(torch.full((1, 4), 3.0), torch.tensor([1])),
    ]
    owners = [(5, 9), (1, 9), (2, 9), (0, 8)]
    observed = observe([], dict.fromkeys(owners, net), artifacts=artifacts)
    rows, found = observed.target_rows()
    assert rows[:, 0].tolist() == [1, 1, 2, 3]
    assert found == [(5, 9), (5, 9), (1, 9), (0, 8)]


def test_a_reconstruction_saves_every_tensor_it_holds():
    values = {
        field.name: "" if field.name == "stopped_because" else torch.full((1,), float(i))
        for i, field in enumerate(dataclasses.fields(Reconstruction))
    }
    saved, _ = Reconstruction(**values).save()
    assert saved.keys() == values.keys() - {"stopped_because"}
    for name, tensor in saved.items():
        assert torch.equal(tensor, values[name])
