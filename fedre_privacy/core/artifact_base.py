"""What every kind of artifact is: tensors with what they hold, and what the rest knows of the kind.

`core.artifacts` has the kinds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from .artifact_schema import Content, Holds, Role, Sum, wrong_values
from .host_copies import host_copies


def wire(content: Content, shape: str) -> Any:
    """Declare a tensor field of an artifact: what it holds and its shape."""
    return field(metadata={"content": content, "shape": shape})


@dataclass(frozen=True, eq=False)
class Artifact:
    """Base of what crosses the wire. Subclasses declare tensor fields with `wire`.

    A field is a tensor, or a mapping from names to tensors (model states). What the rest of the
    package has to know about a kind is declared here, in the class.
    """

    kind: ClassVar[str] = ""
    in_paper_counts: ClassVar[bool] = True
    """Whether published communication tables count it."""
    updates: ClassVar[bool] = False
    """Whether it holds trained parameters or gradients, the input of gradient inversion."""
    roles: ClassVar[frozenset[Role]] = frozenset()
    """What it is to clients and their defences."""
    holds: ClassVar[Holds | None] = None
    """What `parameters` returns; none: not the tensors of a whole model."""
    like: ClassVar[tuple[type[Artifact], ...]] = ()
    """Kinds whose attacks read this kind as well, and run on it in a benchmark."""
    summed: ClassVar[Sum] = Sum.BY_SAMPLES
    """How secure aggregation sums it."""
    over_rounds: ClassVar[bool] = False
    """Whether attacks combine several rounds of it, for which a benchmark keeps every model."""
    tells: ClassVar[str] = ""
    """What it says beside its values, which no defence hides, in words."""
    kinds: ClassVar[dict[str, type[Artifact]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        known = Artifact.kinds.setdefault(cls.kind, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"artifact kind '{cls.kind}' is already taken by {known.__qualname__}")
        Artifact.kinds[cls.kind] = cls

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name; entries of a mapping field are ``field/name``."""
        out: dict[str, Tensor] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Mapping):
                out |= {f"{item.name}/{key}": tensor for key, tensor in value.items()}
            else:
                out[item.name] = value
        return out

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Rebuild an artifact from `tensors`.

        Raises:
            ValueError: a declared tensor is absent, or an undeclared one is present.
        """
        declared = {item.name for item in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        extra: list[str] = []
        for key, tensor in tensors.items():
            name, inside, rest = key.partition("/")
            known = values.get(name, {} if inside else None)
            if name not in declared or not (isinstance(known, dict) if inside else known is None):
                extra.append(key)
            elif inside:
                values.setdefault(name, {})[rest] = tensor
            else:
                values[name] = tensor
        absent = declared - set(values)
        if absent or extra:
            raise ValueError(
                f"{cls.__name__} needs the tensors {sorted(declared)}; "
                f"absent: {sorted(absent) or 'none'}, not known: {sorted(extra) or 'none'}"
            )
        return cls(**values)

    def problems(self) -> list[str]:
        """Say in which ways the tensors are not as declared: dimensions, lengths, values.

        Labels are whole numbers of 0 or more, encodings sum to one, everything is finite.
        """
        found: list[str] = []
        lengths: dict[str, int] = {}
        for item in dataclasses.fields(self):
            value, content = getattr(self, item.name), item.metadata["content"]
            shape = item.metadata["shape"]
            if isinstance(value, Mapping) != (not shape.startswith("(")):
                return [f"'{item.name}' is not {shape}"]
            for name, tensor in value.items() if isinstance(value, Mapping) else [("", value)]:
                called = f"{item.name}/{name}" if name else item.name
                found += wrong_values(called, tensor, content)
            if isinstance(value, Mapping):
                continue
            letters = [part.strip() for part in shape.strip("()").split(",") if part.strip()]
            sizes = value.shape
            if letters[:1] == ["..."]:  # any dimensions may come before the declared ones
                letters, sizes = letters[1:], sizes[-len(letters[1:]) :]
            if len(letters) != len(sizes):
                return [*found, f"'{item.name}' has shape {tuple(value.shape)}, not {shape}"]
            for letter, length in zip(letters, sizes, strict=True):
                if lengths.setdefault(letter, length) != length:
                    found.append(f"'{item.name}' has shape {tuple(value.shape)}, and {letter} is "
                                 f"{lengths[letter]} elsewhere")  # fmt: skip
        return found

    def content(self) -> dict[str, Content]:
        """Return what each tensor of `tensors` holds."""
        by_field = {item.name: item.metadata["content"] for item in dataclasses.fields(self)}
        return {name: by_field[name.split("/")[0]] for name in self.tensors()}

    def scalars(self) -> dict[Content, int]:
        """Count scalars by content; an integer counts as one."""
        out: dict[Content, int] = {}
        content = self.content()
        for name, tensor in self.tensors().items():
            out[content[name]] = out.get(content[name], 0) + tensor.numel()
        return out

    def nbytes(self) -> int:
        """Size of the tensors as serialised, without file headers (bytes)."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    def detached_copy(self) -> Self:
        """Return a copy on the CPU that shares no storage with anything."""
        return type(self).from_tensors(host_copies(self.tensors()))

    def rows(self) -> Tensor | None:
        """Vectors carried that stand for images, (n, d), or None if it carries none."""
        return None

    def take(self, rows: Tensor) -> Self:
        """Keep some of the rows, in the order given."""
        return type(self).from_tensors({n: t[rows] for n, t in self.tensors().items()})

    def encodings(self, num_classes: int) -> Tensor | None:
        """Label encoding of each row of `rows`, (n, num_classes), rows summing to 1, or None."""
        return None

    def parameters(self, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Tensors by parameter name, where it holds a mapping of such.

        Args:
            shapes: of the model's parameters, for kinds that send them in another form.
        """
        return {name.partition("/")[2]: tensor for name, tensor in self.tensors().items()}

    def fitted(self, other: Artifact) -> Artifact:
        """The same parameters in the shapes of another artifact of this kind, where they differ."""
        return self

    def __repr__(self) -> str:
        parts = ", ".join(f"{n} {tuple(t.shape)}" for n, t in self.tensors().items())
        return f"{type(self).__name__}({parts})"
