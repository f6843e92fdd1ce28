"""What do uploads tell a server that holds no extractor, and what does a private start cost?

Trains each protocol with shared and with private initial weights and attacks what it uploads in the
rounds asked for: `shadow` under `public-init` where the start is shared, from random weights under
`no-extractor` where it is private, and beside it `linear` with the clients' own extractors
(`strong`). Usage:

    python benchmarks/shadow.py [--protocols fedgh,fedproto] [--dataset DATA] [--seeds 1,2,3]
        [--rounds 1,2,5] [--trained 20] [--out FOLDER]

Clients of `pra:0.1` with cnn4. Targets are prototypes of one image, of FedAllRep single
representations, of FedRE entangled uploads. `over` is PSNR over the best floor, `other` that of the
answers to other targets over the same floor, `found` the share of answers whose nearest image among
100 is the right one (by chance one in 23 to 100, as so many look-alikes are in the line-up).
Intervals are 95 %, with clients as units. Settings of `shadow` were chosen on seed 0, which is
refused. Accuracy is the mean over clients after the last round, at the protocol's own moment.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from experiments import attacked, federation, federation_options, pooled, seeds_of, targets

from fedre_privacy.eval.intervals import cluster_means
from fedre_privacy.models.families import PRIVATE, SHARED
from fedre_privacy.runs.run import Run

PROTOCOLS = ("fedgh", "fedproto", "fedtgp", "fpl", "fedallrep", "fedre")
TUNED_SEED = 0
"""The seed on which settings of the attack were chosen."""
SINGLE = ("fedgh", "fedproto", "fedtgp", "fpl")
"""Protocols whose uploads of one image are attacked."""
OF_SHADOW: Mapping[str, tuple[str, dict[str, Any]]] = {
    SHARED: ("public-init", {"name": "shadow"}),
    PRIVATE: ("no-extractor", {"name": "shadow", "start": "random"}),
}
WHITE_BOX = ("strong", {"name": "linear"})


def scores_of(run: Run, round: int, how: tuple[str, dict[str, Any]], count: int) -> pd.DataFrame:
    """Scores of single targets of an attack on a round, a frame with `client`."""
    threat, chosen = how
    limit = 1 if run.settings.protocol.name in SINGLE else None
    evaluation = {"round": round, "targets": count, "max_images": limit, "ceiling": 0}
    return targets(attacked(run, {"attack": chosen, "threat": threat, "eval": evaluation}))


def mean(values: pd.Series, clients: pd.Series) -> str:
    """Mean and 95 % interval over clients."""
    numbers = torch.tensor(values.to_numpy(), dtype=torch.float64)[:, None]
    found = cluster_means(numbers, torch.tensor(clients.to_numpy()))
    low, high = found.interval()
    return f"{float(found.mean):+.2f} [{float(low):+.2f}, {float(high):+.2f}]"


def line(name: str, parts: Sequence[pd.DataFrame]) -> str:
    """One printed row of all seeds."""
    rows = pooled(parts)
    over = mean(rows["psnr"] - rows["psnr_floor"], rows["unit"])
    other = (rows["psnr_mismatched"] - rows["psnr_floor"]).mean()
    return (
        f"{name:<36} n {len(rows):>3}, floor {rows['psnr_floor'].mean():.2f} dB, over {over}, "
        f"other {other:+.2f}, found {rows['hit1'].mean():.2f}"
    )


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = federation_options(
        __doc__, trained=1, targets=40, seeds="1,2,3", out=Path("runs/shadow")
    )
    parser.add_argument("--protocols", default=",".join(PROTOCOLS))
    parser.add_argument("--rounds", default="1", help="attacked; empty: accuracy alone")
    parser.add_argument("--starts", default=f"{SHARED},{PRIVATE}")
    return parser


def main() -> None:
    """Train, attack, and print a row for each protocol, start, round and attacker."""
    asked = parser().parse_args()
    seeds = seeds_of(parser(), asked, [TUNED_SEED])
    rounds = [int(round) for round in asked.rounds.split(",") if round]
    asked.trained = max(asked.trained, *rounds, 1)
    torch.set_num_threads(1)
    for protocol in asked.protocols.split(","):
        for init in asked.starts.split(","):
            kept = {"record": {"keep_every": 1}, "model": {"init": init}}
            runs = [federation(protocol, seed, asked, **kept) for seed in seeds]
            moment = f"acc_{runs[0].settings.protocol.headline}"
            reached = torch.tensor([run.record["final"][moment] for run in runs]).double()
            print(
                f"{protocol}, {init} start: accuracy after {asked.trained} rounds "
                f"{float(reached.mean()):.3f} (n {len(runs)}: "
                f"{', '.join(f'{one:.3f}' for one in reached.tolist())})",
                flush=True,
            )
            attackers = {"shadow": OF_SHADOW[init]}
            if init == SHARED:
                attackers["white box"] = WHITE_BOX
            for round in rounds:
                for name, how in attackers.items():
                    parts = [scores_of(run, round, how, asked.targets) for run in runs]
                    print(line(f"{protocol}, {init}, round {round}: {name}", parts), flush=True)


if __name__ == "__main__":
    main()
