"""What an attack makes of each defence that clients declared, in words and for the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedre_privacy.attacks.base import Attack
from fedre_privacy.core.channels import NOTHING, PLACES, mask_is_hidden
from fedre_privacy.core.plugin_errors import attribute_errors
from fedre_privacy.core.types import Observation, channel_places


@dataclass(frozen=True)
class Adaptation:
    """What one attack makes of one declared defence.

    Args:
        described: whether the defence describes its channel; no attack adapts to one that does not.
        used: in words, the steps of its channel that the attack takes into account.
        unused: those that its targets went through and that it does not take into account.
    """

    attack: str
    defense: str
    described: bool
    used: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def adaptations(attack: Attack, observation: Observation) -> tuple[Adaptation, ...]:
    """What an attack makes of every defence that it is told about, in order.

    Left out are entanglement schemes whose upload is the mix that its encoding tells: there is
    nothing to adapt to.
    """
    with attribute_errors(attack):
        adapts = attack.adapts(observation)
    here = channel_places(observation)
    out = []
    for number, known in enumerate(observation.defenses):
        if known.channel is None:
            out.append(Adaptation(attack.name, known.name, described=False))
            continue
        if known.channel == NOTHING:
            continue
        after = replace(observation, defenses=observation.defenses[number + 1 :]).channel
        used, unused = [], []
        for place in PLACES:
            steps = known.channel.at(place)
            for at, step in enumerate(steps, 1):
                hidden = mask_is_hidden(step, (*steps[at:], *after.at(place)), place)
                if isinstance(step, adapts.get(place, ())) and not hidden:
                    used.append(step.word)
                elif place in here:
                    unused.append(step.word)
        left = [word for word in unused if word not in used]
        words = tuple(dict.fromkeys(used)), tuple(dict.fromkeys(left))
        out.append(Adaptation(attack.name, known.name, True, *words))
    return tuple(out)


def sentence(found: Sequence[Adaptation]) -> str:
    """Adaptations of one attack in words: what it adapts to, what it leaves aside, what is unsaid.

    >>> sentence([Adaptation("dip", "gaussian", True, ("bound",), ("noise",))])
    'adaptive to gaussian (bound; not noise)'
    """
    used = [one for one in found if one.used]
    unused = [one for one in found if one.described and one.unused and not one.used]
    apart = [one for one in found if one.described and not one.unused and not one.used]
    silent = [one for one in found if not one.described]
    parts = []
    if used:
        parts.append("adaptive to " + ", ".join(map(_partly_adapts, used)))
    if unused:
        pronoun = "it" if len(unused) == 1 else "them"
        parts.append(f"knows {_names(unused)}, does not use {pronoun}")
    if apart:
        verb = "does" if len(apart) == 1 else "do"
        parts.append(f"{_names(apart)} {verb} not act on its targets")
    for one in silent:
        parts.append(f"'{one.defense}' describes no channel: not adapted to")
    return "; ".join(parts)


def _partly_adapts(one: Adaptation) -> str:
    if not one.unused:
        return one.defense
    return f"{one.defense} ({', '.join(one.used)}; not {', '.join(one.unused)})"


def _names(found: Sequence[Adaptation]) -> str:
    return ", ".join(one.defense for one in found)
