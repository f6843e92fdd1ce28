"""Inversion without the client's extractor: a server rehearses the client from a known start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedre_privacy.core.artifacts import EntangledRep, HeadState, Prototypes, Representations
from fedre_privacy.core.channels import NoisySteps, Smoothing, joined
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation

from .base import RECOVERED, Attack, Context, SuiteEntry, attacks
from .gradient.head_cases import shares_told
from .inversion.rehearsals import Rehearsing
from .inversion.rehearsed import Shadows, rehearsed_answers
from .running.channels import ROWS_REPEATED

UNKNOWN_START: dict[str, Any] = {
    "place": 35,
    "unknown_start": True,
    "settings": {"start": "random"},
}


@attacks.register("shadow")
@dataclass(frozen=True, kw_only=True)
class Shadow(Shadows, Rehearsing, Attack):
    """Recover images from early uploads through copies of the client that the server trained.

    Where clients of one architecture begin with weights that the server knows, it trains a few
    copies ("shadows") of a client on auxiliary images of the client's classes, for the client's
    number of steps and with the broadcasts of these rounds. One ridge regression from their
    representations to pixels, over all of them, is then applied to the upload. Before that each
    shadow is moved so that its means of the client's *other* classes agree with the prototypes that
    the client uploaded of them; the target's own class is left out. The penalty is chosen on
    held-out images of a shadow that was held out: it has to stand for what differs between shadows.
    Candidates about that answer are then moved as `ensemble-kalman` moves them, each through a
    shadow of its own, so that what differs between shadows counts as noise; the answer is their
    mean.

    How often each class occurs decides where training leads. The shares are counted where labels of
    single samples or counts are uploaded, and read off the change of a head where one is. Where
    prototypes are, those are sought under which a shadow has class means like the uploaded ones:
    `tries` draws, then twice as many about the best of them. Elsewhere each shadow draws its own.

    Drift makes shadows useless after a few rounds, so the first one is attacked unless
    ``eval.round`` says otherwise. With ``start=random`` the shadows begin with random weights of
    the client's architecture, which is what remains where the start is not known
    (``model.init=private``); it tells nothing, and serves as the control. Clients see nothing of
    it: the server is passive.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, HEAD, TRAINING, AUX_DATA, ARCHITECTURE, and INITIAL_MODEL with
                ``start=known``; no extractor       Recovers: inputs
    Cost:       for each client its local training up to the attacked round `shadows` times, and
                three times `tries` where shares are sought; `views` forward passes over the
                auxiliary images, and d^2 (d + C H W) multiplications for each client and class;
                for each target `moves` times `members` passes of a shadow
    Reference:  this project; shadows as in Shokri et al., Membership inference attacks against
                machine learning models, S&P 2017; ridge regression: Hoerl and Kennard,
                1970; for the candidates see `ensemble-kalman`.
    """

    consumes = (Representations, Prototypes, EntangledRep)
    recovers = "inputs"
    earliest = True
    suite = (
        SuiteEntry(Representations, "public-init", place=35),
        SuiteEntry(Prototypes, "public-init", place=35, fewest_first=True),
        SuiteEntry(HeadState, "public-init", RECOVERED, 35, "head", fewest_first=True),
        SuiteEntry(Representations, "no-extractor", **UNKNOWN_START),
        SuiteEntry(Prototypes, "no-extractor", fewest_first=True, **UNKNOWN_START),
    )
    adapts_to = joined(ROWS_REPEATED, {"training": (NoisySteps,), "encoding": (Smoothing,)})

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        owners = {(upload.client, upload.round) for upload in observation.targets}
        told = {owner: shares_told(observation, owner) for owner in sorted(owners)}
        return rehearsed_answers(
            observation,
            context,
            self,
            random=self.start == "random",
            share={owner: share for owner, share in told.items() if share is not None},
        )
