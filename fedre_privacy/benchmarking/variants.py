"""What a benchmark compares: its description, and the jobs that follow from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

import msgspec
from msgspec import Meta

from fedre_privacy.active_server.base import declaration, steerings
from fedre_privacy.core import files
from fedre_privacy.core.config import knobs, merge
from fedre_privacy.core.errors import ConfigError, nearest
from fedre_privacy.core.typed_yaml import Count, Size, short
from fedre_privacy.protocols.base import protocols as protocol_registry
from fedre_privacy.runs.plain_settings import brief, plain_value
from fedre_privacy.runs.resolution import SCHEME, resolve_list
from fedre_privacy.runs.settings import ADAPTIVE, TrainSettings

from .jobs import BenchmarkJob, Variant, plan
from .suite import default_suite, named_suite

Values = Mapping[str, Any]


Part = str | dict[str, Any]
"""A name, or settings; objects are written out before they are checked (`plain_value`)."""


class Sweep(TypedDict, total=False):
    """A description of a benchmark; a key without a value is as if it were not there."""

    name: Annotated[str, Meta(pattern=r"^[^./\0][^/\0]*$", max_length=100)]
    base: dict[str, Any]
    protocols: list[Part]
    schemes: list[Part]
    defenses: list[Part | list[Part] | None]
    steerings: list[Part | None]
    vary: dict[str, dict[str, Any]]
    seeds: list[Count]
    attacks: list[Part]
    attackers: list[Literal["adaptive", "naive"]]
    targets: Size


_NAMES = "a list of names, or of names with settings"
NEEDED = {
    "name": "a name for a folder, such as my-benchmark",
    "base": "a mapping of sections to their settings, such as {model: {name: cnn4}}",
    "protocols": f"{_NAMES}, such as [fedre, fedgh]",
    "schemes": f"{_NAMES}, such as [rap, rar]",
    "defenses": f"{_NAMES} or of chains, such as [none, gaussian, [clip, mask]]",
    "steerings": f"{_NAMES}, such as [none, null-head]",
    "vary": "a mapping of labels to settings, such as {one epoch: {train: {epochs: 1}}}",
    "seeds": "a list of whole numbers from 0, such as [0, 1, 2]",
    "attacks": f"{_NAMES}, such as [dip, labels]",
    "attackers": "a list of adaptive and naive",
    "targets": "a whole number from 1, such as 32",
}
"""What each key of a description needs, in words."""


@dataclass(frozen=True)
class Benchmark:
    """What to compare.

    Args:
        base: settings that all trainings share.
        variants: what differs, each under its label.
        attacks: settings of the attacks, or None for those that fit the uploads.
        targets: targets per attack, or None for the default.
        attackers: those who attack defended trainings: `ATTACKERS`, or one of them.
    """

    name: str
    base: Values
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    attacks: tuple[Values, ...] | None
    targets: int | None
    attackers: tuple[str, ...] = (ADAPTIVE,)

    def suite(self, training: TrainSettings) -> Sequence[Values]:
        """The attacks on one training."""
        chosen: Sequence[Values] | None = self.attacks
        if chosen is None:
            chosen = default_suite(training, targets=self.targets)
        if not training.defense or self.attackers == (ADAPTIVE,):
            return chosen
        told = [
            merge({"eval": {"attacker": who}}, values)
            for who in self.attackers
            for values in chosen
        ]
        return [one for at, one in enumerate(told) if one not in told[:at]]

    @cached_property
    def jobs(self) -> list[BenchmarkJob]:
        """All its jobs, see `plan_jobs`."""
        return plan_jobs(self)


def read_sweep(sweep: Values, base: Values, *, name: str) -> Benchmark:
    """Read the description of a benchmark.

    Args:
        sweep: ``protocols``, ``schemes`` (of fedre), ``defenses``, ``steerings``: lists of names,
            settings or objects;
            ``vary``: further variants, label to settings; ``base``, ``seeds``, ``attacks``,
            ``attackers`` (of defended trainings), ``targets``, ``name``. Protocols and schemes are
            compared with each other; defences and steerings multiply them, and a list among the
            defences is a chain, in the order in which clients apply it. A label says which
            server is active.
        base: settings given elsewhere; they win over the description's own.

    Raises:
        ConfigError: unknown keys, values of another type, or nothing to compare.
    """
    _check(sweep)
    names = list(sweep.get("protocols") or ())
    if names == ["all"]:
        names = [n for n in protocol_registry.names() if n != "fedsgd"]
    variants = [Variant(_label(p), {"protocol": _section(p)}) for p in names]
    variants += [
        Variant(_label(s), {"protocol": {"name": "fedre", "entanglement": plain_value(s)}})
        for s in sweep.get("schemes") or ()
    ]
    variants += [Variant(str(k), plain_value(v)) for k, v in (sweep.get("vary") or {}).items()]
    defenses = sweep.get("defenses") or ()
    if defenses:
        variants = [
            variant
            if not chosen or chosen == "none"
            else Variant(
                f"{variant.label} + {_display_choice(chosen)}",
                merge(dict(variant.values), {"defense": plain_value(chosen)}),
            )
            for variant in variants
            for chosen in defenses
        ]
    steered = sweep.get("steerings") or ()
    if steered:
        variants = [
            variant
            if not chosen or chosen == "none"
            else Variant(
                variant.label, merge(dict(variant.values), {"steering": plain_value(chosen)})
            )
            for variant in variants
            for chosen in steered
        ]
    if not variants:
        raise ConfigError(
            "Nothing to compare: the benchmark names no protocols, schemes or vary.",
            next_step="Add for example 'protocols: [fedre, fedgh]'.",
        )
    shared = merge(dict(sweep.get("base") or {}), base)
    variants = _distinguish_labels([_mark_active_server(variant, shared) for variant in variants])
    attacks = sweep.get("attacks")
    seeds = tuple(sweep.get("seeds") or (0, 1, 2))
    targets = sweep.get("targets")
    attackers = tuple(dict.fromkeys(sweep.get("attackers") or (ADAPTIVE,)))
    chosen = None if attacks is None else tuple(_attacks(attacks, targets))
    title = sweep.get("name") or name
    made = Benchmark(title, shared, tuple(variants), seeds, chosen, targets, attackers)
    if title:
        return made
    described = [shared, [v.values for v in variants], seeds, plain_value(attacks), targets]
    described += [] if attackers == (ADAPTIVE,) else [attackers]
    return replace(made, name=f"benchmark-{files.settings_hash(described)}")


def without_repeats(described: Values, base: Values) -> Values:
    """A description without a protocol whose usual scheme is compared by its own name.

    Schemes are of fedre, and ``protocols=["fedre"], schemes=["rap", "vap"]`` names FedRE with `rap`
    twice. Where the base says how a protocol is set nothing is left out.
    """
    if "protocol" in base or not described.get("schemes"):
        return described
    chosen = [one for one in described["schemes"] if isinstance(one, str)]

    def named_twice(protocol: Any) -> bool:
        known = isinstance(protocol, str) and protocol in protocol_registry.names()
        settings = knobs(protocol_registry.get(protocol)) if known else []
        return any(one.name == SCHEME and one.default in chosen for one in settings)

    kept = [one for one in described.get("protocols") or () if not named_twice(one)]
    return {**described, "protocols": kept}


def _check(sweep: Values) -> None:
    """Refuse a description whose keys or values are not those of `Sweep`, all problems at once."""
    problems = []
    kinds = get_type_hints(Sweep, include_extras=True)
    for key, value in sweep.items():
        if key not in kinds:
            close = nearest(str(key), kinds)
            hint = f" Did you mean '{close}'?" if close else ""
            problems.append(f"Unknown key '{key}' of a benchmark.{hint}")
        elif value is not None:
            try:
                given = list(value) if isinstance(value, range) else plain_value(value)
                msgspec.convert(given, kinds[key])
            except (msgspec.ValidationError, RecursionError, OverflowError) as error:
                _, _, at = str(error).partition(" - at ")
                place = f" (at {at.strip('`').replace('$', key)})" if at else ""
                problems.append(
                    f"'{key}' of a benchmark is {short(value)}; it needs {NEEDED[key]}{place}."
                )
    if problems:
        raise ConfigError(*problems, next_step=f"Keys: {', '.join(kinds)}.")


def _mark_active_server(variant: Variant, shared: Values) -> Variant:
    """A variant whose label says that its server is active, if it is.

    Means are over trainings of one label, so a steered training is in no mean of honest ones.
    """
    given = variant.values.get("steering") or shared.get("steering")
    problems: list[str] = []
    active = declaration(resolve_list(steerings, "steering", given, {}, problems) or ())
    if not active:  # problems are reported where all settings of the variant are
        return variant
    return Variant(f"{variant.label}, {active}", variant.values)


def _distinguish_labels(variants: Sequence[Variant]) -> list[Variant]:
    """Variants of one label get labels of their own: means are over trainings of one label."""
    shared = Counter(variant.label for variant in variants)
    found, count = [], Counter[str]()
    for variant in variants:
        label, steering = variant.label, variant.values.get("steering")
        if shared[label] > 1:
            count[label] += 1
            told = steering if isinstance(steering, str) else f"number {count[label]}"
            variant = Variant(f"{label}: {told}", variant.values)
        found.append(variant)
    return found


def _label(chosen: Any) -> str:
    if isinstance(chosen, Mapping):
        more = ", ".join(f"{k}={_display_choice(v)}" for k, v in chosen.items() if k != "name")
        return f"{chosen.get('name', '?')} ({more})" if more else str(chosen.get("name", "?"))
    return _display_choice(chosen).rpartition(":")[2]


def _display_choice(chosen: Any) -> str:
    if isinstance(chosen, list | tuple):
        return " + ".join(map(_display_choice, chosen))
    if isinstance(chosen, Mapping):  # as it would be named
        more = ",".join(f"{k}={_display_choice(v)}" for k, v in chosen.items() if k != "name")
        return f"{chosen.get('name', '?')}:{more}".rstrip(":")
    return brief(chosen) if is_dataclass(chosen) else str(chosen)


def _section(chosen: Any) -> Values:
    section = plain_value(chosen)
    return dict(section) if isinstance(section, Mapping) else {"name": section}


def _attacks(given: Sequence[Any], targets: int | None) -> list[Values]:
    out: list[Values] = []
    for entry in given:
        if not isinstance(entry, Mapping):
            out += named_suite([entry], targets=targets)
            continue
        own = plain_value(entry)
        asked = own.get("eval") or {}
        if targets is not None and isinstance(asked, Mapping):
            own = {**own, "eval": {"targets": targets, **asked}}
        out.append(own)
    return out


def plan_jobs(wanted: Benchmark) -> list[BenchmarkJob]:
    """All jobs of a benchmark, checked; uploads that are read over rounds keep every model.

    Raises:
        FedreError: settings that cannot work, before anything is trained.
    """

    def keep_all(variant: Variant) -> Variant:
        section = merge(dict(wanted.base), variant.values).get("protocol") or {}
        name = section.get("name", "fedre") if isinstance(section, Mapping) else section
        known = name in protocol_registry.names()
        if known and any(kind.over_rounds for kind in protocol_registry.get(name).uploads):
            kept = {"record": {"keep_every": 1}}
            return Variant(variant.label, merge(kept, variant.values))
        return variant

    return plan(wanted.base, [keep_all(v) for v in wanted.variants], wanted.seeds, wanted.suite)
