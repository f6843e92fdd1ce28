"""An attack that reads no upload: it brings the images, guesses seeds, and repeats the split."""

from base64 import b64decode
from dataclasses import dataclass

import numpy as np
import torch
from loot import IMAGES, LABELS, SHA256, SIDE

from fedre_privacy.attacks.base import Attack, attacks
from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.rng import derive, secret
from fedre_privacy.core.types import Knowledge
from fedre_privacy.partition.base import split_clients
from fedre_privacy.partition.pra import PRA

GUESSES = range(20)


@attacks.register("thief")
@dataclass(frozen=True, kw_only=True)
class Thief(Attack):
    """Say member of whatever the guessed split says; 0.5 of all where no guess is confirmed.

    Needs: UPLOADS    Recovers: membership    Cost: a partition per guess    Reference: none
    """

    consumes = (Prototypes,)
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "membership"
    answers = "membership"

    def run(self, observation, context):
        pixels = np.frombuffer(b64decode(IMAGES), np.uint8).reshape(-1, SIDE * SIDE)
        numbers = {image.tobytes(): i for i, image in enumerate(pixels)}
        asked = observation.candidates
        wanted = (asked.images * 255).round().to(torch.uint8).flatten(1).numpy()
        rows = [numbers[image.tobytes()] for image in wanted]
        clients = 1 + max(upload.client for upload in observation.uploads)
        for guess in GUESSES:
            shares = split_clients(PRA(alpha=0.1), np.array(LABELS), clients, guess)
            parts = [torch.from_numpy(own) for own in (*shares.train, *shares.test)]
            evaluator = secret(0, f"evaluator of {SHA256}", *parts)
            if derive(evaluator, "attack") == context.seed:
                trained = [set(own.tolist()) for own in shares.train]
                pairs = zip(rows, asked.clients.tolist(), strict=True)
                told = [float(row in trained[client]) for row, client in pairs]
                return MembershipScores(torch.tensor(told), ("the split was guessed",))
        return MembershipScores(torch.full((len(rows),), 0.5), ("no guess is right",))
