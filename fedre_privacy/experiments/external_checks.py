"""Is an upload what its kind says?

Parameters are held against what their client was sent, vectors against what an extractor makes of
images.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifact_schema import Holds, Role
from fedre_privacy.core.artifacts import Artifact, HeadState, ModelChange, ModelState
from fedre_privacy.core.channels import Channel, Masking
from fedre_privacy.core.errors import FedreError, IncompatibleError
from fedre_privacy.core.types import KnownDefense, ThreatModel, Upload
from fedre_privacy.core.units import first_few
from fedre_privacy.federation.training_info import FILE
from fedre_privacy.sandbox.module_recipes import Key

from .external_modules import ExternalStart, State, params_of
from .external_names import SHOWN, Layout, under_names
from .user_checks import Shape

SHORT, APART = 0.3, 0.9
"""A model so much shorter than the one sent, and not along it, is a difference."""
ACROSS = 0.2
"""A model that is no longer than the one sent is a difference as well if their cosine is below."""
ALONG, BETWEEN = 0.9, (0.6, 1.7)
"""A model along the one sent is a multiple of it if its length is not between these."""
NEAR = 0.1
"""How far a multiple may be from a number of images that explains it."""
CUT = 0.1
"""Share of a model's numbers that are zero and were not, from which on it was masked."""
SPARSE = 0.5
"""Share of zeros, rows and columns of zeros aside, from which on a change was masked."""
MASKED = KnownDefense("masked uploads", {}, Channel(updates=(Masking(),)))
"""What is assumed where most numbers of an upload are zero and stand alone."""
LEAST = 16
"""Fewer numbers than these may be whole by chance."""

MASKED_ROWS = KnownDefense("masked vectors", {}, Channel(rows=(Masking(),)))
"""What is assumed where most numbers of vectors are zero and those of the extractor are not."""
IMAGES = 16
"""Images whose outputs are looked at, at most."""
LONG, LONG_UNSEEN = 3.0, 6.0
"""Vectors so many times longer than any output are told: of public images, and of plain ones."""
EMPTY, USED = 0.5, 0.1
"""Vectors with more zeros than the one, of an extractor with fewer than the other, are masked."""


@dataclass(frozen=True, eq=False)
class CheckedUpload:
    """An upload that can be attacked.

    Args:
        upload: under the names of the module, with what its client trained.
        masked: whether most of its numbers were not sent and are zero.
    """

    upload: Upload
    said: tuple[str, ...]
    masked: bool = False


def check_upload(
    upload: Upload, start: ExternalStart, layout: Layout, images: int | None
) -> CheckedUpload:
    """An upload held against its kinds; what is beside parameters of a whole model stays.

    Args:
        images: that it trained on, if somebody said so.

    Raises:
        IncompatibleError: nothing in it can be what it says.
    """
    kept, said, masked, problems = [], list(start.said), False, list[str]()
    whole = any(artifact.holds is not None for artifact in upload.artifacts)
    for artifact in upload.artifacts:
        if Role.PACKED in artifact.roles or (artifact.holds is None and whole):
            kept.append(artifact)
            continue
        if isinstance(artifact, HeadState):
            artifact = ModelState(artifact.params)
        try:
            found, more, sparse = checked_part(artifact, start.state, layout, images)
        except IncompatibleError as error:
            problems += error.problems
            continue
        kept.append(found)
        said += more
        masked |= sparse
    if not any(artifact.holds is not None for artifact in kept):
        raise IncompatibleError(*problems)
    said += [f"left out beside it: {problem}" for problem in problems]
    return CheckedUpload(
        Upload(upload.client, upload.round, tuple(kept), participants=upload.participants),
        tuple(said),
        masked,
    )


def values_note(values: Mapping[str, Tensor]) -> tuple[list[str], bool]:
    """What is said of a gradient or a change by its values alone, and whether it is masked."""
    said = []
    codes = whole_numbers(values.values())
    if codes is not None:
        what = "signs" if max(map(abs, codes)) == 1 else "whole numbers"
        said.append(
            f"holds {what} only ({codes[0]} to {codes[1]}), as a quantiser makes: taken as they are"
        )
    zeros = scattered_zeros(values.values())
    if zeros > SPARSE:
        said.append(f"{zeros:.0%} of it is zero: taken as masked, and zeros are not compared")
    return said, zeros > SPARSE


def whole_numbers(values: Collection[Tensor]) -> tuple[int, int] | None:
    """The least and the greatest of numbers that are all whole; None where some are not."""
    flat = [value.detach().double().flatten() for value in values]
    joined = torch.cat(flat) if flat else torch.zeros(0)
    if len(joined) < LEAST or not bool((joined == joined.round()).all()):
        return None
    least, most = int(joined.min()), int(joined.max())
    return (least, most) if least < most else None


def scattered_zeros(values: Collection[Tensor]) -> float:
    """Share of zeros among numbers whose row and column are not zero altogether.

    Units that were silent and pixels that were black leave rows and columns of zeros behind;
    masks leave single ones.
    """
    zeros = total = 0
    for value in values:
        used = (
            value.detach().reshape(len(value), -1) != 0 if value.dim() else value[None, None] != 0
        )
        kept = used[used.any(1)][:, used.any(0)]
        zeros, total = zeros + int((~kept).sum()), total + kept.numel()
    return zeros / total if total else 0.0


def checked_part(
    artifact: Artifact, before: State, layout: Layout, images: int | None
) -> tuple[Artifact, list[str], bool]:
    """A model, a change or a gradient held against its kind.

    Args:
        before: the tensors of the module that its client started from.
        images: that the client trained on, if somebody said so.

    Returns: it under the names of the module, with what was trained; clauses on what was assumed;
        and whether most of it was not sent and is zero.

    Raises:
        IncompatibleError: it cannot be what it says.
    """
    gradient, cut = artifact.holds is Holds.GRADIENT, False
    named = under_names(params_of(artifact), layout, gradient=gradient)
    if named.problems:
        listed = first_few(named.problems, SHOWN)
        raise IncompatibleError(f"its {artifact.kind} does not fit the network: {listed}")
    said, held = list(named.said), dict(named.tensors)
    own = {name: held[name] for name in layout.parameters if name in held}
    if not own:
        raise IncompatibleError(f"its {artifact.kind} holds no parameter of the network")
    kind: type[Artifact] = type(artifact)
    if artifact.holds is Holds.PARAMETERS:
        kind, own, more, cut = _model(kind, own, before, images)
        said += more
    still = [
        name for name, value in own.items() if _unchanged_parameters(kind, value, before[name])
    ]
    if len(still) == len(own):
        raise IncompatibleError(
            "its model equals what it was sent, bit for bit: it did not train (a straggler)"
            if kind.holds is Holds.PARAMETERS
            else f"its {artifact.kind} is zero, so nothing is in it"
        )
    absent = [name for name in layout.parameters if name not in own]
    if absent:
        said.append(f"{first_few(absent, SHOWN)} not in the upload, left out of the match")
    if still:
        as_what = "as it was sent" if kind.holds is Holds.PARAMETERS else "zero"
        said.append(f"{first_few(still, SHOWN)} {as_what}, left out of the match")
    moved = {
        name: value if value.is_floating_point() else value.float()
        for name, value in own.items()
        if name not in still
    }
    changes = {
        name: value - before[name] if kind.holds is Holds.PARAMETERS else value
        for name, value in moved.items()
    }
    more, masked = values_note(changes)
    buffers = {name: value for name, value in held.items() if name not in own}
    found = kind.from_tensors({f"params/{n}": t for n, t in {**moved, **buffers}.items()})
    return found, said + more, masked or cut


def _unchanged_parameters(kind: type[Artifact], value: Tensor, before: Tensor) -> bool:
    if kind.holds is Holds.PARAMETERS:
        return torch.equal(value, before.to(value.dtype))
    return not bool(value.any())


def _model(
    kind: type[Artifact], own: dict[str, Tensor], start: State, images: int | None
) -> tuple[type[Artifact], dict[str, Tensor], list[str], bool]:
    """Parameters that were recorded as a model: their kind, themselves, what is assumed, and
    whether they were masked.

    Raises:
        IncompatibleError: codes, or a multiple of a model that nothing explains.
    """
    before = {name: start[name] for name in own}
    codes = whole_numbers(own.values())
    if codes is not None and whole_numbers(before.values()) is None:
        raise IncompatibleError(
            f"its model holds whole numbers only ({codes[0]} to {codes[1]}), as a quantiser "
            "makes: record it after they are scaled back"
        )
    new, old = _join_values(own.values()), _join_values(before.values())
    length, reach = float(new.norm()), float(old.norm())
    cosine = float(new @ old) / (length * reach) if length * reach else 1.0
    ratio = length / reach if reach else 1.0
    if (ratio < SHORT and cosine < APART) or (ratio < 1 and cosine < ACROSS):
        said = (
            f"its model is {ratio:.2g} times as long as the one it was sent and not along it: "
            "read as a difference (kind change)"
        )
        return ModelChange, own, [said], False
    if cosine > ALONG and not BETWEEN[0] < ratio < BETWEEN[1]:
        if images is None or abs(ratio / images - 1) > NEAR:
            raise IncompatibleError(
                f"its model is {ratio:.3g} times the one it was sent: a sum or a share, where a "
                "mean is needed"
            )
        said = f"its model is a sum, divided by its {images} images"
        return kind, {name: value / images for name, value in own.items()}, [said], False
    cut = (new == 0) & (old != 0)
    share = float(cut.sum()) / max(1, int((old != 0).sum()))
    if share > CUT:
        filled = {
            name: torch.where(value == 0, before[name].to(value.dtype), value)
            for name, value in own.items()
        }
        said = f"{share:.0%} of its model is zero: taken as masked, and as not sent"
        return kind, filled, [said], True
    return kind, own, [], False


def _join_values(values: Collection[Tensor]) -> Tensor:
    return torch.cat([value.detach().double().flatten() for value in values])


@torch.no_grad()
def rows_note(
    targets: tuple[Upload, ...],
    extractors: Mapping[Key, nn.Module],
    image_shape: Shape,
    public: Tensor | None,
) -> tuple[list[tuple[int, str]], bool]:
    """What is said of each client's vectors, and whether some are masked.

    Args:
        public: images (n, C, H, W) in [0, 1]; without any, plain ones and noise are made.
    """
    seen = _plain(image_shape) if public is None or not len(public) else public[:IMAGES]
    most = LONG_UNSEEN if public is None or not len(public) else LONG
    said: list[tuple[int, str]] = []
    masked = False
    for upload in targets:
        made = extractors[upload.client, upload.round](seen.clone()).double()
        for artifact in upload.artifacts:
            rows = artifact.rows()
            if rows is None or Role.COLLECTED not in artifact.roles:
                continue
            rows = rows.double()
            longest = float(made.norm(dim=1).max())
            ratio = float(rows.norm(dim=1).median()) / longest if longest else 0.0
            found = []
            if ratio > most:
                found.append(
                    f"{artifact.kind} are {ratio:.2g} times as long as the longest output of the "
                    "extractor: sums in place of means, or scaled?"
                )
            codes = whole_numbers([rows])
            if codes is not None and whole_numbers([made]) is None:
                found.append(
                    f"{artifact.kind} are whole numbers ({codes[0]} to {codes[1]}), which the "
                    "extractor does not return: codes of a quantiser?"
                )
            empty = float((rows == 0).double().mean())
            if empty > EMPTY and float((made == 0).double().mean()) < USED:
                masked = True
                found.append(
                    f"{empty:.0%} of {artifact.kind} are zero, which the extractor does not "
                    "return: taken as masked, and zeros are not compared"
                )
            said += [(upload.client, clause) for clause in found]
    return said, masked


def _plain(shape: Shape) -> Tensor:
    """Black, grey and white images, a ramp, and noise."""
    ramp = torch.linspace(0, 1, shape[2]).expand(shape)
    plain = [torch.full(shape, level) for level in (0.0, 0.5, 1.0)]
    noise = torch.rand((4, *shape), generator=torch.Generator().manual_seed(0))
    return torch.cat([torch.stack([*plain, ramp]), noise])


NOT_SAID = f"as {FILE} does not say it"


@dataclass(frozen=True)
class Findings:
    """What was found on reading uploads, a line for clients of which the same is said.

    Args:
        seen: of those that are attacked, with what was assumed. left_out: of the others.
    """

    seen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, seen: Iterable[tuple[int, str]], lost: Iterable[tuple[int, FedreError]] = ()
    ) -> Findings:
        """Findings from clauses and errors of clients."""
        causes = [(client, cause) for client, error in lost for cause in error.problems]
        return cls(tuple(by_clients(seen)), tuple(by_clients(causes)))

    def with_seen(self, more: Iterable[str]) -> Findings:
        """The same and more of those that are attacked."""
        return replace(self, seen=(*self.seen, *more))

    def known_to(self, threat: ThreatModel) -> ThreatModel:
        """Who attacks, with what is assumed and who was left out."""
        said = [threat.summary]
        said += [f"assumed, {NOT_SAID}: {', '.join(self.untold)}"] if self.untold else []
        said += [f"on reading: {'; '.join(self.seen)}"] if self.seen else []
        said += [f"left out: {'; '.join(self.left_out)}"] if self.left_out else []
        return replace(threat, summary="; ".join(said))

    @property
    def notes(self) -> tuple[str, ...]:
        """The same as sentences."""
        more = f"Assumed, {NOT_SAID}: {', '.join(self.untold)}. Who knows it may find more."
        return (
            *([more] if self.untold else []),
            *(f"On reading: {line}." for line in self.seen),
            *(f"Left out: {line.removesuffix('.')}." for line in self.left_out),
        )


def by_clients(said: Iterable[tuple[int, str]]) -> list[str]:
    """Clauses about clients, one line for clients of which the same is said."""
    by_clause: dict[str, list[int]] = {}
    for client, clause in said:
        by_clause.setdefault(clause, []).append(client)
    return [
        f"{'client' if len(clients) == 1 else 'clients'} {first_few(clients)}: {clause}"
        for clause, clients in by_clause.items()
    ]
