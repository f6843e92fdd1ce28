"""What every protocol promises; on a tiny federation that is trained under it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedre_privacy.benchmarking.suite import default_suite
from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.config import parse_assignments, plain, plain_plugin
from fedre_privacy.core.errors import FedreError
from fedre_privacy.core.types import Upload
from fedre_privacy.defenses.secagg import aggregate_upload
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.federation.ledger import measure
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.federation.shadow_training import ShadowTraining
from fedre_privacy.protocols.base import Protocol, protocols
from fedre_privacy.protocols.blocks.state import Client, Message, Server, Task
from fedre_privacy.reproduction.measured_traffic import sizes_of_run
from fedre_privacy.runs.initial_state import shared_start
from fedre_privacy.runs.preparation import prepare
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train

from .federation import (
    NotApplicable,
    expect,
    fresh_folder,
    name_of,
    settings_of,
    survives,
    trained_run,
)

CLIENT = 1
ROUNDS = (1, 2, 3)
NEAR = 1e-5
"""How far numbers may be apart that differ by rounding."""
ANY_ROUND = ("start_client", "setup_receive", "receive")
"""Hooks in which a client does not use its data, where it uses them in training only."""


def run_of(cls: type[Protocol]) -> Run:
    """The tiny run of a protocol; read only."""
    return trained_run(name_of(cls, protocols))


def declarations(cls: type[Protocol]) -> None:
    """It says what it sends and which accuracy to quote, and keeps its settings."""
    name = name_of(cls, protocols)
    made = cls()
    expect(made.name == name, f"Its name is '{made.name}' and it is registered as '{name}'.")
    expect(bool(cls.__doc__), "It has no docstring, which --explain would print.")
    expect(made.headline in ("post_local", "post_broadcast"), "'headline' is no moment.")
    expect(made.sums in ("", "samples", "classes", "clients"), f"'sums' is '{made.sums}'.")
    expect(isinstance(made.unseen, str), "'unseen' is no text.")
    known = all(issubclass(kind, Artifact) and kind.kind for kind in made.uploads)
    expect(known, "'uploads' names something that is no kind of artifact.")
    survives(protocols, made, "protocol")


def sends_what_it_declares(cls: type[Protocol]) -> None:
    """Only declared kinds go out and come back, all of them finite."""
    run = run_of(cls)
    declared = run.settings.protocol.uploads
    uploads, broadcasts = read_messages(run.folder / "uploads")
    found = {type(artifact) for upload in uploads for artifact in upload.artifacts}
    others = ", ".join(sorted(kind.__name__ for kind in found - set(declared)))
    expect(not others, f"Clients send {others}, which 'uploads' does not name.")
    answered = {type(a) for b in broadcasts if b.round for a in b.artifacts}
    others = ", ".join(sorted(kind.__name__ for kind in answered - set(cls.broadcasts)))
    expect(not others, f"Its server sends {others}, which 'broadcasts' does not name.")
    expect(bool(answered) or not cls.broadcasts, "Its server sends nothing of 'broadcasts'.")
    sent = [artifact for upload in uploads for artifact in upload.artifacts]
    sent += [artifact for broadcast in broadcasts for artifact in broadcast.artifacts]
    finite = all(bool(t.isfinite().all()) for a in sent for t in a.tensors().values())
    expect(finite, "It sends numbers that are not finite.")
    once = {type(a) for upload in uploads if upload.round == 0 for a in upload.artifacts}
    for kind in declared:
        expect(kind in once or Role.ONCE not in kind.roles, f"{kind.__name__} is not sent once.")


def rows_come_with_their_provenance(cls: type[Protocol]) -> None:
    """Which samples made each row is recorded, so that the evaluator knows what is sought."""
    run = run_of(cls)
    last = run.settings.train.rounds
    mixtures = run.mixtures(last)
    for upload in read_messages(run.folder / "uploads", [last])[0]:
        for number, artifact in enumerate(upload.artifacts):
            rows = artifact.rows()
            if rows is not None and Role.COLLECTED in artifact.roles:
                mixture = mixtures.get((upload.client, number))
                expect(
                    mixture is not None and mixture.num_rows == len(rows),
                    f"{type(artifact).__name__} comes without the mixture of each row.",
                )


def same_seed_same_bytes(cls: type[Protocol]) -> None:
    """Trained again it uploads the same bytes under the same name."""
    first = run_of(cls)
    with fresh_folder() as folder:
        again = train(settings_of(name_of(cls, protocols)), runs=Path(folder))
        expect(again.name == first.name, "The same settings have another name the second time.")
        for file in sorted((first.folder / "uploads").glob("*.safetensors")):
            same = file.read_bytes() == (again.folder / "uploads" / file.name).read_bytes()
            expect(same, f"Trained again it uploads other bytes: {file.name}.")


def its_formula_of_traffic_is_what_is_sent(cls: type[Protocol]) -> None:
    """`traffic` counts the numbers and bytes of a round as they are recorded."""
    run = run_of(cls)
    sizes = sizes_of_run(run)
    exchange = run.settings.protocol.traffic(sizes) if sizes else None
    if exchange is None:
        raise NotApplicable("it has no formula for these settings")
    uploads, broadcasts = read_messages(run.folder / "uploads", [2])
    for way, count, ledger in (
        ("up", exchange.up, measure((u.artifacts, 1) for u in uploads)),
        ("down", exchange.down, measure((b.artifacts, len(b.recipients)) for b in broadcasts)),
    ):
        if count is not None:
            said = (count.paper, count.complete, count.nbytes)
            sent = (ledger.scalars_paper, ledger.scalars_complete, ledger.nbytes)
            expect(said == sent, f"Its formula says {said} go {way} and {sent} do.")


def the_default_suite_fits_it(cls: type[Protocol]) -> None:
    """Every attack that a benchmark would run on it can be run."""
    training = settings_of(name_of(cls, protocols))
    problems: list[str] = []
    for values in default_suite(training):
        settings = resolve_attack(dict(values), {}, problems)
        if settings is None:
            raise AssertionError(" ".join(problems))
        try:
            check_ahead(training, settings)
        except FedreError as error:
            raise AssertionError(f"A benchmark would run what is refused: {error}") from error


# --- declared facts are proved -------------------------------------------------------------------


@contextmanager
def in_place_of(cls: type, hooks: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Other functions in place of hooks of a class, for as long as the block runs."""
    own = {name: vars(cls).get(name) for name in hooks}
    for name, hook in hooks.items():
        setattr(cls, name, hook)
    try:
        yield
    finally:
        for name, before in own.items():
            if before is None:
                delattr(cls, name)
            else:
                setattr(cls, name, before)


def train_with(cls: type[Protocol], hooks: dict[str, Callable[..., Any]], **more: Any) -> None:
    """Train the tiny federation under a protocol some of whose hooks are others."""
    name = name_of(cls, protocols)
    values = plain_plugin(settings_of(name).protocol) | more
    with in_place_of(cls, hooks), fresh_folder() as folder:
        train(settings_of(name, protocol=values), runs=Path(folder))


def sums_are_all_that_it_needs(cls: type[Protocol]) -> None:
    """Where it declares `sums`, a server that sees sums alone broadcasts what its server does."""
    name_of(cls, protocols)
    more = parse_assignments([cls.sums_with]) if cls.sums_with else {}
    if not (cls.sums or more):
        raise NotApplicable("it declares that it needs single uploads")
    twins: list[Server] = []

    def proved(hook: str, answer: Callable[[Protocol, Server], Message]) -> Callable[..., None]:
        single = getattr(cls, hook)

        def both(self: Protocol, server: Server, uploads: Sequence[Upload], task: Task) -> None:
            if not twins:
                twins.append(copy.deepcopy(server))
            sizes = [sum(counts) for counts in task.setting.class_counts]
            sent = any(upload.artifacts for upload in uploads)
            with torch.random.fork_rng(devices=[]):
                single(
                    self, twins[0], [aggregate_upload(uploads, sizes)] if sent else uploads, task
                )
            single(self, server, uploads, task)
            expect(
                near(answer(self, server), answer(self, twins[0])),
                f"It declares sums = '{self.sums}', but from the sum of uploads '{hook}' makes "
                "something else than from single ones. Declare sums = '' if it needs these.",
            )

        return both

    hooks = {
        "setup_aggregate": proved("setup_aggregate", cls.setup_broadcast),
        "aggregate": proved("aggregate", cls.broadcast),
    }
    train_with(cls, hooks, **more)


def near(one: Message, other: Message) -> bool:
    """Whether two messages hold the same numbers but for rounding, relative to the largest."""
    if [type(artifact) for artifact in one] != [type(artifact) for artifact in other]:
        return False
    for own, theirs in zip(one, other, strict=True):
        pairs = [(value, theirs.tensors().get(name)) for name, value in own.tensors().items()]
        for value, twin in pairs:
            if twin is None or twin.shape != value.shape:
                return False
            gap, most = (value.double() - twin.double()).abs(), value.double().abs()
            if value.numel() and float(gap.max()) > NEAR * max(1.0, float(most.max())):
                return False
    return True


class _ClosedSamples:
    """A client's data where the protocol said that it does not use them."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(
            "It declares training_only = True, but a client uses its data when it receives or "
            "starts. Declare training_only = False."
        )

    __len__ = __getitem__ = lambda self, *_: self.__getattr__("data")


def data_are_used_in_training_only(cls: type[Protocol]) -> None:
    """Where it declares `training_only`, clients receive and start without their data."""
    name_of(cls, protocols)
    if not cls.training_only:
        raise NotApplicable("it declares that clients use their data elsewhere too")

    def without_data(hook: str) -> Callable[..., None]:
        own = getattr(cls, hook)

        def closed(self: Protocol, client: Client, *others: Any) -> None:
            data, client.train = client.train, _ClosedSamples()  # type: ignore[assignment]
            try:
                own(self, client, *others)
            finally:
                client.train = data

        return closed

    train_with(cls, {hook: without_data(hook) for hook in ANY_ROUND})


def shadow_training_of(run: Run) -> ShadowTraining:
    """What a server may know of a run: settings and broadcasts, no seed and no data."""
    training = plain(run.settings.train)
    del training["seed"]
    prepared = prepare(run.settings, torch.device("cpu"))
    return ShadowTraining(
        protocol=plain_plugin(run.settings.protocol),
        model=plain(run.settings.model),
        training=training,
        defense=tuple(plain_plugin(one) for one in prepared.defense),
        image_shape=run.image_shape,
        num_classes=len(run.record["classes"]),
        broadcasts=tuple(run.messages().of()[1]),
    )


def samples_of(run: Run, client: int = CLIENT) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """A client's images in [0, 1], its labels, and its model before the first round."""
    data = run.settings.data.load()
    index = run.split_indices()[0][client]
    start = shared_start(run.settings, client, run.image_shape, len(run.record["classes"]))
    return data.floats(index), data.labels[index], start


def distance(model: Any, run: Run, client: int = CLIENT, round: int = ROUNDS[-1]) -> float:
    """How far an extractor is from the one that was kept, in its largest difference."""
    kept = run.model(client, round).extractor.state_dict()
    return max(
        float((value - kept[name]).abs().max())
        for name, value in model.extractor.state_dict().items()
        if value.is_floating_point()
    )


def a_server_can_repeat_the_training(cls: type[Protocol]) -> None:
    """From the true samples, start and order, settings and broadcasts lead to the kept models.

    Attacks that simulate local training rely on it, unless `unseen` says why they cannot.
    """
    run = run_of(cls)
    images, labels, start = samples_of(run)
    held, seed = shadow_training_of(run), run.settings.train.seed
    again = ShadowTraining.from_plain(json.loads(json.dumps(held.plain())), held.broadcasts)
    models = again(CLIENT, start, images, labels, ROUNDS, seed)
    expect(set(models) == set(ROUNDS), "Some rounds cannot be repeated.")
    for round, model in models.items():
        gap = distance(model, run, round=round)
        expect(gap < NEAR, f"Repeated training ends {gap:.1e} from the client's of round {round}.")
        frozen = not model.training and not any(p.requires_grad for p in model.parameters())
        expect(frozen, "Repeated training returns a model that is not frozen.")
    moved = max(distance(start, run, round=round) for round in ROUNDS)
    expect(moved > 1e-3, "Local training moves no extractor.")
    sent = again.uploads(CLIENT, start, images, labels, ROUNDS, seed)
    true = {u.round: u.artifacts for u in run.messages().of()[0] if u.client == CLIENT}
    for round in ROUNDS:
        pairs = [[a.tensors() for a in some] for some in (sent[round], true.get(round, ()))]
        same = len(pairs[0]) == len(pairs[1]) and all(
            one.keys() == other.keys()
            and all(torch.allclose(one[n], other[n], atol=1e-4) for n in one)
            for one, other in zip(*pairs, strict=False)
        )
        expect(same, f"Repeated training uploads something else in round {round}.")


CHECKS: tuple[Callable[[type[Protocol]], None], ...] = (
    declarations,
    sends_what_it_declares,
    rows_come_with_their_provenance,
    same_seed_same_bytes,
    its_formula_of_traffic_is_what_is_sent,
    the_default_suite_fits_it,
    sums_are_all_that_it_needs,
    data_are_used_in_training_only,
    a_server_can_repeat_the_training,
)
