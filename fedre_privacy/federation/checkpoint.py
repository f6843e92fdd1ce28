"""The whole state of a federation between two rounds, in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedre_privacy.core import files
from fedre_privacy.core.errors import DamagedInputError
from fedre_privacy.core.typed_yaml import check, parse_json
from fedre_privacy.protocols.blocks.state import Client, Server

FILE = "state.safetensors"


def _modules(clients: Sequence[Client], server: Server) -> dict[str, nn.Module]:
    out: dict[str, nn.Module] = {f"server/{name}": m for name, m in server.modules.items()}
    for client in clients:
        out[f"client{client.id}/model"] = client.model
        out |= {f"client{client.id}/{name}": m for name, m in client.memory.items()}
    return out


def save(
    folder: Path, clients: Sequence[Client], server: Server, *, round: int, metrics: list[Any]
) -> None:
    """Write the state after `round`, replacing the one before it in a single rename."""
    meta = {"round": str(round), "metrics": json.dumps(metrics)}
    files.write_tensors(folder / FILE, checkpoint_state(clients, server), metadata=meta)


def checkpoint_state(clients: Sequence[Client], server: Server) -> dict[str, Tensor]:
    """Everything that clients and server keep from round to round, by owner and name."""
    owned: dict[str, Mapping[str, Tensor]] = {"server:tensors": server.tensors}
    owned |= {f"client{client.id}:tensors": client.tensors for client in clients}
    owned |= {owner: module.state_dict() for owner, module in _modules(clients, server).items()}
    return {f"{owner}|{name}": v for owner, kept in owned.items() for name, v in kept.items()}


def load(folder: Path, clients: Sequence[Client], server: Server) -> tuple[int, list[Any]] | None:
    """Put a saved state into clients and server; return its round and metrics, or None.

    Raises:
        DamagedInputError: the file does not fit these models, or tells no round and its metrics.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    tensors = files.read_tensors(path)
    done, metrics = _read_progress(path)
    put_back(tensors, clients, server, path)
    return done, metrics


def _read_progress(path: Path) -> tuple[int, list[Any]]:
    """The round after which a checkpoint was written, and a row of metrics for each until then."""
    meta = files.read_metadata(path)
    try:
        metrics = check(parse_json(meta["metrics"]), list[dict[str, Any]], path)
        rounds = [row.get("round") for row in metrics]
        if int(meta["round"]) != len(rounds) or rounds != list(range(1, len(rounds) + 1)):
            raise ValueError(f"it tells of round {meta['round'][:20]} and of {len(rounds)} rows")
    except (KeyError, ValueError) as error:
        raise DamagedInputError(
            f"{path} is no checkpoint of this version: {error}.",
            next_step="Train again with --restart.",
        ) from None
    return len(rounds), metrics


def put_back(
    tensors: Mapping[str, Tensor], clients: Sequence[Client], server: Server, path: Path
) -> None:
    """Undo `checkpoint_state`.

    Args:
        path: the file that the tensors were read from, for the error.

    Raises:
        DamagedInputError: they do not fit these models.
    """
    owned: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        owner, _, name = key.partition("|")
        owned.setdefault(owner, {})[name] = value
    for owner, module in _modules(clients, server).items():
        try:
            module.load_state_dict(owned.get(owner, {}))
        except RuntimeError as error:
            raise DamagedInputError(f"{path} does not fit this run: {error}") from None
    server.tensors.clear()
    server.tensors |= owned.get("server:tensors", {})
    for client in clients:
        loaded, device = owned.get(f"client{client.id}:tensors", {}), client.train.labels.device
        client.tensors.clear()
        client.tensors |= {name: value.to(device) for name, value in loaded.items()}
