"""How much of each class is in a mixed representation, from the broadcast head alone."""

from __future__ import annotations

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor


def unmix(rows: Tensor, weight: Tensor, *, ridge: float = 0.1) -> Tensor:
    """Solve min over w >= 0 of ||m + a sum_c w_c W_c - R|| for uploads of one round.

    Near collapse a prototype lies along its class's row of the head. The offset m is common to
    the clients; it is found from their differences, under the condition that each class is absent
    somewhere, without which it cannot be told from a share that all hold. One upload alone
    therefore keeps m = 0.

    Args:
        rows: mixed representations R (K, d), one per client.
        weight: rows W_c of the head that the clients received (C, d).
        ridge: penalty relative to the mean squared norm of the centred W_c.

    Returns:
        (K, C) float64 weights, rows summing to 1; NaN where nothing fits.
    """
    rows, weight = rows.double(), weight.double()
    weight = weight - weight.mean(0)
    gram = weight @ weight.T
    gram = gram + ridge * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
    offset = torch.zeros(rows.shape[1], dtype=torch.float64)
    if len(rows) > 1:
        centred = rows - rows.mean(0)
        shares = torch.linalg.solve(gram, weight @ centred.T).T
        offset = (rows - (shares - shares.amin(0)) @ weight).mean(0)
    penalty = (ridge * gram.diagonal().mean()).sqrt() * torch.eye(len(weight)).to(gram)
    system = torch.cat([weight.T, penalty]).numpy()
    nothing = np.zeros(len(weight))
    found = [
        scipy.optimize.nnls(system, np.concatenate([(r - offset).numpy(), nothing]))[0]
        for r in rows
    ]
    shares = torch.from_numpy(np.stack(found))
    total = shares.sum(1, keepdim=True)
    return torch.where(total > 0, shares / total, torch.nan)
