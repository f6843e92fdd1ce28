"""Class means of representations, read off the change of a linear head under local training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedre_privacy.core.optimisers import Adam

from .label_counts import SMALL

REPETITIONS = 10
"""Of the replay by which class shares are found."""
PUBLIC_SHARE = 0.3
"""Of a direction, what public class means give where they are known; the head gives the rest."""
PUBLIC_LENGTH = 2.0
"""Length of differences over that of public class means, where those are known."""


def ratio(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """dW_c / db_c where the class pulled its own bias up; exact for a single sample.

    Of several classes it lies beyond the class mean, away from the others. A class whose bias the
    others pushed up has no answer.

    Args:
        weight, bias: head before minus after, or its gradient; (C, d) and (C,).

    Returns: means (m, d) and their classes (m,) int64, ascending.
    """
    classes = (bias < -SMALL * bias.abs().max()).nonzero().flatten()
    return weight[classes] / bias[classes, None], classes


def classes_pulled(weight: Tensor, slack: float = SMALL) -> Tensor:
    """Classes present at the client (C,) bool, where representations have no negative entry.

    Only a sample of class c moves row c of a head towards itself; all others move it away from
    themselves. So a row that fell somewhere by more than rounding belongs to a class present.

    Args:
        weight: head before minus after, or its gradient (C, d).
        slack: share of a row that may have fallen by error.
    """
    fallen: Tensor = weight.clamp(max=0).norm(dim=1) > max(slack, SMALL) * weight.norm(dim=1)
    return fallen


def absent_input(weight: Tensor, bias: Tensor, present: Tensor, reach: float) -> Tensor:
    """What the representations have in common (d,), read off the rows of absent classes.

    Such a row is a sum of representations with positive weights, and its bias the sum of the
    weights. Where no class is absent, the one input that explains all rows best stands in; where
    the bias did not move, each weight is taken as that of a uniform output.

    Args:
        weight, bias: head before minus after, or its gradient; (C, d) and (C,).
        present: which classes are (C,) bool.
        reach: step size times steps.
    """
    absent, pushes = weight[~present], bias[~present].sum()
    if not bool(bias.any()):
        uniform = reach * max(1, len(absent)) / len(weight)
        return absent.sum(0) / uniform
    if len(absent) and float(pushes) > 0:
        return absent.sum(0) / pushes
    return common_input(weight, bias)


def pulls(weight: Tensor, bias: Tensor, present: Tensor, reach: float) -> Tensor:
    """Where each class lies from what all have in common, by one change of a head (C, d).

    With m in common, dW_c - db_c m is -a_c (h_c - m), a_c > 0, if a mistake is as likely for one
    class as for another. Its direction is that of dW_c / db_c - m where db_c < 0, and is told
    where the others pushed the bias of a rare class up, too. None of it depends on how long the
    change is.

    Arguments as of `absent_input`; classes that are not present are zero.

    Returns: unit directions less their mean over the classes present.
    """
    found = torch.zeros_like(weight)
    if bool(present.any()):
        beyond = weight - bias[:, None] * absent_input(weight, bias, present, reach)
        units = -_unit(beyond[present])
        found[present] = units - units.mean(0)
    return found


def combine_pulls(
    weight: Tensor,
    bias: Tensor,
    present: Tensor,
    reach: float,
    *,
    length: float,
    public: Tensor | None = None,
    earlier: Sequence[tuple[Tensor, Tensor]] = (),
) -> tuple[Tensor, Tensor]:
    """Class means in the direction of `pulls`, about what classes have in common.

    The length of one difference is not told by several steps on changing batches, so all have the
    same. It is more than the real one: m is off by more than classes differ, and an answer should
    point the right way all the same. Directions of several rounds are averaged, as the client's
    images are the same and its batches are not.

    Args, beside those of `absent_input`:
        length: of a difference before they are centred, over that of what is in common. Where no
            class is absent, the median one of `ratio` if that is longer.
        public: class means of public images (C, d), which give m, the lengths and a share of the
            directions; or None.
        earlier: `pulls` of earlier rounds (C, d), and the classes present in each (C,) bool, which
            are answered for as well.

    Returns: means (n, d) and their classes (n,) int64, ascending.
    """
    summed, times = pulls(weight, bias, present, reach), present.double()
    for found, held in earlier:
        summed, times = summed + found, times + held
    classes = (times > 0).nonzero().flatten()
    directions = summed[classes] / times[classes, None]
    directions = directions - directions.mean(0)
    if public is not None:
        known = public[classes].to(weight)
        gaps = known - known.mean(0)
        directions = (1 - PUBLIC_SHARE) * directions + PUBLIC_SHARE * _unit(gaps)
        return known.mean(0) + PUBLIC_LENGTH * gaps.norm(dim=1).mean() * directions, classes
    common = absent_input(weight, bias, present, reach)
    beyond = weight - bias[:, None] * common
    size = length * common.norm()
    down = bias < -SMALL * bias.abs().max()
    if bool(present.all()) and bool(down.any()):
        size = torch.maximum(size, (beyond[down].norm(dim=1) / -bias[down]).median())
    return common + size * directions, classes


def shrink_to_public(means: Tensor, public: Tensor, known_as: Tensor) -> Tensor:
    """Class means moved towards public ones, the further the better the model knows the class.

    Of a class with many samples, public images tell the mean better than the head does; of a class
    with few they tell little. How many there were is not sent, but a model that was trained on few
    of a class recognises few others of it.

    Args:
        means, public: (n, d).
        known_as: mean softmax of public images for their own class (n,) in [0, 1].
    """
    return means + known_as[:, None] * (public - means)


def _unit(rows: Tensor) -> Tensor:
    length: Tensor = rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return rows / length


def replay(
    means: Tensor, share: Tensor, weight: Tensor, bias: Tensor, rates: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Gradient steps of a linear head on one representation per class, before minus after.

    Args:
        means: representation of each class (n, C, d).
        share: share of each class among the samples (n, C).
        weight, bias: heads at the start (n, C, d) and (n, C).
        rates: step sizes (n,).
        steps: how many.

    Returns: the change of weight (n, C, d) and bias (n, C).
    """
    at, offset = weight, bias
    identity = torch.eye(bias.shape[1], dtype=bias.dtype, device=bias.device)
    for _ in range(steps):
        logits = means @ at.transpose(1, 2) + offset[:, None]
        pull = share[..., None] * (torch.softmax(logits, dim=2) - identity)
        at = at - rates[:, None, None] * (pull.transpose(1, 2) @ means)
        offset = offset - rates[:, None] * pull.sum(1)
    return weight - at, bias - offset


def common_input(change_weight: Tensor, change_bias: Tensor) -> Tensor:
    """The one representation (..., d) that explains all rows best, by least squares."""
    power = change_bias.square().sum(-1, keepdim=True).clamp(min=1e-30)
    return (change_bias[..., None] * change_weight).sum(-2) / power


def shares(
    change_weight: Tensor,
    change_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    lr: float,
    steps: int,
    *,
    least: float,
    most: int = 20,
) -> Tensor:
    """Share of each class among a client's samples, (C,) summing to 1, from the change of a head.

    Summed over the local steps, db_c / (lr steps) is the mean output for class c minus its share.
    The outputs drift while the head trains, so they are taken from a replay with the shares found
    so far and rough class means.

    Args:
        change_weight, change_bias: head before minus after (C, d) and (C,).
        weight, bias: the head before.
        lr, steps: of local training.
        least: share below which a class counts as absent.
        most: most steps of a replay.
    """
    total = lr * steps
    slope = change_bias / total
    telling = slope < -SMALL * slope.abs().max()
    strong = slope < -0.3 * slope.abs().max()
    means = common_input(change_weight, change_bias).expand_as(change_weight).clone()
    means[strong] = change_weight[strong] / change_bias[strong, None]
    found = torch.where(telling, -slope, 0.0)
    if not bool(found.sum() > 0):
        return torch.full_like(bias, 1 / len(bias))
    found = found / found.sum()
    replayed = min(steps, most)
    rate = torch.tensor([total / replayed], device=bias.device)
    for _ in range(REPETITIONS):
        _, moved = replay(means[None], found[None], weight[None], bias[None], rate, replayed)
        outputs = moved[0] / total + found
        wanted = (outputs - slope).clamp(min=0).nan_to_num(0.0)
        wanted = torch.where(wanted < least, 0.0, wanted)
        if not bool(wanted.sum() > 0):
            break
        found = 0.5 * (found + wanted / wanted.sum())
    found = torch.where(found < least, 0.0, found)
    return found / found.sum()


def simulate_and_match(
    change_weight: Tensor,
    change_bias: Tensor,
    share: Tensor,
    weight: Tensor,
    bias: Tensor,
    rates: Tensor,
    *,
    replayed: int,
    steps: int,
    lr: float,
    nonnegative: bool,
    free_share: bool,
    noise: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Seek the class representations under which local training changes the head as uploaded.

    Minimises ||dW - dW*||^2 / ||dW*||^2 + ||db - db*||^2 / ||db*||^2 by Adam, from the one
    representation that explains all rows best. What all classes have in common is told by the rows
    of absent classes; where every class is present, only differences between classes are sure.

    Args:
        change_weight, change_bias: heads before minus after (n, C, d) and (n, C).
        share, weight, bias, rates: see `replay`.
        replayed: steps of a replay.
        steps, lr: Adam's; the step size is relative to the size of a representation.
        nonnegative: whether representations have no negative entry.
        free_share: whether the shares are adjusted too.
        noise: start of the representations (n, C, d), standard normal.

    Returns: means (n, C, d), shares (n, C), and the attained match (n,).
    """
    norm_weight = change_weight.square().sum((1, 2)) + 1e-30
    norm_bias = change_bias.square().sum(1) + 1e-30
    common = common_input(change_weight, change_bias)[:, None]
    common = common.clamp(min=0) if nonnegative else common
    scale = common.square().mean(2, keepdim=True).sqrt().clamp(min=1e-12)
    values = (common / scale + 0.05 * noise).requires_grad_()
    scores = share.clamp(min=1e-8).log().requires_grad_()
    optimiser = Adam([values, scores] if free_share else [values], lr=lr)
    present = share > 0

    def current() -> tuple[Tensor, Tensor]:
        means = scale * (values.abs() if nonnegative else values)
        if not free_share:
            return means, share
        return means, torch.softmax(scores.masked_fill(~present, -torch.inf), dim=1)

    def distance() -> Tensor:
        made_weight, made_bias = replay(*current(), weight, bias, rates, replayed)
        return (made_weight - change_weight).square().sum((1, 2)) / norm_weight + (
            made_bias - change_bias
        ).square().sum(1) / norm_bias

    for _ in range(steps):
        optimiser.zero_grad()
        distance().sum().backward()
        optimiser.step()
    with torch.no_grad():
        means, found = current()
        return means, found, distance()
