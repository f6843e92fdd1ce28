"""Local training of several clients in one program, where each alone is too small for the device.

On a GPU a step of a small model takes as long as its launches, whatever it computes. Clients of one
architecture therefore stack their parameters, and one step (`torch.func.vmap`) trains them all. On
a CPU that takes longer than one client after another (benchmarks/together.py).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.utils.rnn import pad_sequence

from fedre_privacy.defenses.apply import trainer_of
from fedre_privacy.defenses.base import Defense
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.state import Client, Samples, Setting, Task

from .steps import order_of_batches

log = logging.getLogger("fedre_privacy")

AT_ONCE = 32
"""Clients in one program at most; a constant, so results do not depend on memory."""

PLAIN_HOOKS = ("modules", "learning_rates", "loss")

State = dict[str, Tensor]


def train_together(
    protocol: Protocol,
    clients: Sequence[Client],
    chosen: Sequence[int],
    setting: Setting,
    round: int,
    defenses: Sequence[Defense] = (),
) -> dict[int, float]:
    """Train those of a round's clients that can be trained together.

    Each goes through the batches that it would see alone and ends at the same model up to rounding.
    Gradients are not left behind. Left to `client_step` are clients without a partner of the same
    architecture and batch size, and all of them where `can_stack_clients` says no or the model
    draws random numbers (dropout) or does what `torch.func.vmap` cannot.

    Args:
        chosen: ids of the round's clients, which have received its broadcast.

    Returns:
        The mean training loss of every client trained here, by its id.
    """
    if not can_stack_clients(protocol, setting, defenses):
        return {}
    groups: dict[object, list[int]] = defaultdict(list)
    for k in chosen:
        size = min(len(clients[k].fitted), setting.training.batch_size)
        groups[setting.architectures[k], size, _form(clients[k].model)].append(k)
    task = partial(Task, setting, round)
    losses: dict[int, float] = {}
    for group in groups.values():
        for start in range(0, len(group), AT_ONCE):
            members = group[start : start + AT_ONCE]
            if len(members) == 1:
                continue
            orders = [
                torch.stack([*order_of_batches(protocol, clients[k], task(k), setting.device)])
                for k in members
            ]
            try:
                means = fit_together(
                    [clients[k].model for k in members],
                    [clients[k].fitted for k in members],
                    orders,
                    lr=setting.training.lr * setting.training.decay(round),
                    device=setting.device,
                )
            except RuntimeError as error:  # vmap refuses it, or memory ran out; no model changed
                why = (str(error).splitlines() or ["no reason given"])[0]
                log.info("round %d: clients train one by one: %s", round, why)
                break
            losses |= dict(zip(members, means, strict=True))
    return losses


def can_stack_clients(protocol: Protocol, setting: Setting, defenses: Sequence[Defense]) -> bool:
    """Whether the settings ask for it, and local training is plain SGD on the plain loss."""
    choice, given = setting.training.together, type(protocol)
    if choice == "never" or (choice == "auto" and setting.device.type != "cuda"):
        return False
    plain = all(getattr(given, name) is getattr(Protocol, name) for name in PLAIN_HOOKS)
    plain = plain and setting.training.plain_sgd
    return plain and protocol.clip_norm is None and trainer_of(defenses) is None


def fit_together(
    models: Sequence[nn.Module],
    samples: Sequence[Samples],
    orders: Sequence[Tensor],
    *,
    lr: float,
    device: torch.device,
) -> list[float]:
    """Train models of one architecture by plain SGD on cross-entropy, all in one program.

    Args:
        models: on any device; where they are they stay.
        samples: of each model, on `device`.
        orders: of each model, the sample numbers (steps, b) of its batches; b is the same for all.

    Returns:
        The mean loss of each model.

    Raises:
        RuntimeError: vmap cannot run the model, or memory ran out; the models are as before.
    """
    ranks = sorted(range(len(models)), key=lambda i: -len(orders[i]))  # who ends first comes last
    rows = [models[i] for i in ranks]
    steps = [len(orders[i]) for i in ranks]
    pool = Samples(
        torch.cat([samples[i].images for i in ranks]), torch.cat([samples[i].labels for i in ranks])
    )
    starts = accumulate((len(samples[i]) for i in ranks[:-1]), initial=0)
    index = pad_sequence([orders[i] + at for i, at in zip(ranks, starts, strict=True)])

    model = rows[0]
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    states = [dict(row.named_parameters()) | dict(row.named_buffers()) for row in rows]
    stacks = {n: torch.stack([s[n].detach() for s in states]).to(device) for n in states[0]}

    def loss(params: State, others: State, images: Tensor, labels: Tensor) -> Tensor:
        logits = functional_call(model, (params, others), (images,))
        return nn.functional.cross_entropy(logits, labels)

    slopes_and_loss = vmap(grad_and_value(loss))
    totals = torch.zeros(len(rows), device=device)
    active, params, others = 0, State(), State()
    model.train()
    try:
        for step, numbers in enumerate(index):  # (clients, b)
            if (left := sum(count > step for count in steps)) != active:
                active = left
                params = {n: v[:active] for n, v in stacks.items() if n in trained}
                others = {n: v[:active] for n, v in stacks.items() if n not in trained}
            images, labels = pool.batch(numbers[:active])
            slopes, values = slopes_and_loss(params, others, images, labels)
            torch._foreach_add_(list(params.values()), [slopes[n] for n in params], alpha=-lr)
            totals[:active] += values
    finally:
        for row in rows:
            row.eval()
    spent = totals.tolist()  # waits for the device: what fails there fails before a model changes
    with torch.no_grad():
        for place, state in enumerate(states):
            for name, value in state.items():
                value.copy_(stacks[name][place])
    means = [total / max(count, 1) for total, count in zip(spent, steps, strict=True)]
    return [means[ranks.index(i)] for i in range(len(models))]


def _form(model: nn.Module) -> object:
    """What models must share to be stacked, beside their architecture's name."""
    return tuple((n, p.shape, p.dtype, p.requires_grad) for n, p in model.named_parameters())
