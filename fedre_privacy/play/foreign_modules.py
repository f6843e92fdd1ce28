"""Modules of another system: functions that make them, and the parameters that go into them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.contents import Holds
from fedre_privacy.core.errors import ConfigError, IncompatibleError, MissingInputError
from fedre_privacy.core.registry import import_own
from fedre_privacy.core.types import Broadcast, Upload
from fedre_privacy.sealed.modules import Held, Key, Modules, Recipe

from .checks import Shape

COUNTED = "num_batches_tracked"
"""What BatchNorm counts beside its statistics; some systems leave it out."""


def load_extractors(
    extractor: str,
    weights: Path,
    state: Mapping[str, Tensor],
    image_shape: Shape,
    keys: Collection[Key],
) -> Modules:
    """Each client's extractor by (client, round), built once to see that its weights fit.

    Args:
        extractor: ``package:function`` that returns the module.
        weights: the file of its tensors, for messages.
        state: tensors of that file.
        image_shape: (C, H, W) of the images that it takes.

    Raises:
        ConfigError: the function is not there, fails, or returns no module.
        IncompatibleError: the weights are not those of this module.
    """
    own = any(name.startswith("client") and "/" in name for name in state)
    states: dict[int, dict[str, Tensor]] = {}
    for client in dict.fromkeys(client for client, _ in keys):
        if not own and states:
            states[client] = next(iter(states.values()))
            continue
        prefix = f"client{client}/" if own else ""
        found = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        module = made(extractor, "--extractor")
        try:
            module.load_state_dict(found)
        except RuntimeError as error:
            words = " ".join(str(error).split())
            raise IncompatibleError(
                f"{weights} does not fit --extractor {extractor}: {words}",
                next_step="Give the weights of this very module, as safetensors of its "
                "state_dict().",
            ) from None
        states[client] = found
    recipe = Recipe(factory=extractor, image_shape=image_shape)
    return Modules({key: Held(recipe, partial(states.__getitem__, key[0])) for key in keys})


def models_before(
    network: str,
    uploads: Sequence[Upload],
    broadcasts: Sequence[Broadcast],
    image_shape: Shape,
) -> Modules:
    """The model from which each upload started, by (client, round), with what was sent to it.

    Args:
        network: ``package:function`` that returns the module, images to logits.
        broadcasts: of the rounds of the uploads; parameters by the module's names, or by numbers
            in the order of its ``state_dict()``.
        image_shape: (C, H, W) of the images that the network takes.

    Raises:
        ConfigError: the function is not there, fails, or returns no module.
        MissingInputError: what a client started from was not recorded.
        IncompatibleError: what was sent is not the parameters of this module.
    """
    blank = {name: t.clone() for name, t in made(network, "--network").state_dict().items()}
    known: dict[int, dict[str, Tensor]] = {}
    held = {}
    recipe = Recipe(factory=network, image_shape=image_shape)
    for upload in uploads:
        message = next(
            (
                number
                for number, one in enumerate(broadcasts)
                if one.round == upload.round and upload.client in one.recipients and _sent(one)
            ),
            None,
        )
        if message is None:
            raise MissingInputError(
                f"What client {upload.client} started round {upload.round} from was not recorded: "
                "there is no broadcast of a model to it in that round.",
                next_step="Record what the server sends as well (docs/my_federation.md).",
            )
        if message not in known:
            sent = by_name(_sent(broadcasts[message]), list(blank))
            _fits(network, sent, blank)
            known[message] = {**blank, **sent}
        state = partial(known.__getitem__, message)
        held[upload.client, upload.round] = Held(recipe, state)
    return Modules(held)


def by_name(sent: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """Tensors that were sent as a list, under the names of a ``state_dict()``; others as they are.

    Args:
        sent: names are the numbers 0, 1, ... where a list was sent.
        names: in the order of the list.
    """
    if set(sent) != {str(number) for number in range(len(sent))}:
        return dict(sent)
    short = [name for name in names if not name.endswith(COUNTED)]
    order = short if len(sent) == len(short) else list(names)
    return {order[int(k)] if int(k) < len(order) else k: v for k, v in sent.items()}


def _sent(message: Broadcast) -> Mapping[str, Tensor]:
    """The parameters that a broadcast holds; empty for none."""
    for artifact in message.artifacts:
        if artifact.holds is Holds.PARAMETERS:
            return _params(artifact)
    return {}


def renamed(artifact: Artifact, names: Sequence[str]) -> Artifact:
    """A model, a gradient or an update under the names of a ``state_dict()`` (see `by_name`)."""
    params = by_name(_params(artifact), names)
    return type(artifact).from_tensors({f"params/{name}": t for name, t in params.items()})


def _params(artifact: Artifact) -> Mapping[str, Tensor]:
    found: Mapping[str, Tensor] = getattr(artifact, "params", {})
    return found


def _fits(network: str, sent: Mapping[str, Tensor], blank: Mapping[str, Tensor]) -> None:
    problems = [
        f"'{name}' is {tuple(sent[name].shape)}, not {tuple(blank[name].shape)}"
        for name in blank
        if name in sent and sent[name].shape != blank[name].shape
    ]
    problems += [f"'{n}' was not sent" for n in blank if n not in sent and not n.endswith(COUNTED)]
    problems += [f"'{name}' is not of the network" for name in sent if name not in blank]
    if problems:
        listed = "; ".join(problems[:4]) + (f"; {len(problems) - 4} more" * (len(problems) > 4))
        raise IncompatibleError(
            f"What was sent does not fit --network {network}: {listed}.",
            next_step="Give the function that makes this very model, with the head.",
        )


def made(path: str, option: str) -> nn.Module:
    """What a function of a user's module makes.

    Raises:
        ConfigError: it is not there, fails, or returns no module.
    """
    try:
        module = _imported(path, option)()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{option} {path} fails: {error!r}.") from None
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{option} {path} returns a {type(module).__name__}, not an nn.Module.")
    return module


def _imported(path: str, option: str) -> Any:
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"{option} is package:function, for example mine:make; got '{path}'.")
    try:
        found = getattr(import_own(module), name, None)
    except Exception as error:
        raise ConfigError(f"{option} {path}: {module} cannot be imported: {error!r}.") from None
    if not callable(found):
        raise ConfigError(f"{option} {path}: module {module} has no function '{name}'.")
    return found
