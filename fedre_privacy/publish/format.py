"""The two kinds of files that are published: a claim, and the verification of one.

Everything is declared and bounded: unknown keys, keys given twice, numbers that are not finite and
texts in which something is hidden are refused. Each file holds a hash of its own content, which
finds careless edits. It is no signature: whoever edits a file can compute the hash anew.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from fedre_privacy.core import files, schema
from fedre_privacy.core.errors import ConfigError, DamagedInputError
from fedre_privacy.core.schema import Count, Number, Seconds
from fedre_privacy.core.text import visible

CLAIM, VERIFICATION = "fedre-privacy/claim", "fedre-privacy/verification"
VERSION = 1

MOST_BYTES, MOST_DEPTH, MOST_VALUES, MOST_TEXT = 1 << 18, 12, 20_000, 8_000
"""Largest file, levels of nesting, values in it, characters of a text."""
MOST_NAME = 100
"""Characters of who publishes."""

ASK = (
    "Ask whoever published it for the file as it was written. Your own: export it again with "
    "fedre-benchmark claim RUN/attacks/NAME."
)
"""What to do about a file that is refused."""

Full = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
"""A SHA-256 (hex)."""
Brief = Annotated[str, Meta(pattern="^[0-9a-f]{8,64}$")]
"""A SHA-256 or its beginning (hex)."""
Name = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.:@+-]{0,99}$")]
"""A name of a part, a measure or a package."""
Line = Annotated[str, Meta(max_length=300)]
"""Words for people."""
Command = Annotated[str, Meta(min_length=1, max_length=MOST_TEXT)]
Module = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
                             max_length=100)]  # fmt: skip
Seed = Annotated[int, Meta(ge=0, le=1 << 53)]
Group = Annotated[str, Meta(pattern="^[A-Za-z0-9 >_.-]{0,50}$")]
Interval = tuple[Number, Number]

SPLIT, TRAINING, ATTACK, SCORES = PARTS = ("split", "training", "attack", "scores")
"""What is repeated: everything with images shared out anew, everything as it was, the attack on a
run that is there, its scores alone."""
REPEATS, WITHIN, OTHERWISE = "repeats", "repeats within tolerance", "does not repeat"


class Numbers(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measure in numbers.

    Args:
        value: mean over the n targets. floor: of what needs no upload, over the same targets.
        over: value less floor, turned so that positive is more leakage.
        interval, over_interval: 95 % intervals of value and over.
        sd: over the n.
    """

    value: Number
    interval: Interval | None
    sd: Annotated[float, Meta(ge=0, le=1e300)] | None
    floor: Number | None
    over: Number | None
    over_interval: Interval | None
    n: Count
    higher_is_more_leakage: bool


class Claimed(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measure that is claimed; see `eval.measures.Measure` for its words."""

    key: Name
    group: Group
    title: Line
    unit: Line
    percent: bool
    digits: Annotated[int, Meta(ge=0, le=12)]
    against: Line
    floor_name: Line | None
    numbers: Numbers


class What(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was measured, by names; the settings say the rest."""

    protocol: Name
    scheme: Name | None
    defenses: list[Name]
    steerings: list[Name]
    dataset: Name
    partition: Name
    target: Name
    attack: Name
    via: Name | None
    threat: Name
    attacker: Name


class Data(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The images that were trained on, and how they were shared out, as hashes."""

    sha256: Full
    partition_sha256: Annotated[list[Brief], Meta(min_length=1, max_length=10)]


class Seeds(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seeds of the training, of the partition where it has one of its own, of the evaluation."""

    training: Seed
    partition: Seed | None
    evaluation: Seed


class Made(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where, with what and how long something was computed."""

    device: Line
    versions: Annotated[dict[Name, Name], Meta(max_length=50)]
    seconds: Seconds


class Hashes(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the result was computed from.

    Args:
        run_manifest, attack_manifest: of ``manifest.json`` in the folders of run and attack.
        uploads: of the recorded uploads and models, which are the same bytes wherever numbers are.
    """

    run_manifest: Full
    attack_manifest: Full
    uploads: Full


class Accuracy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Mean and sd over clients, at the moment that the protocol quotes."""

    mean: Annotated[float, Meta(ge=0, le=1)]
    sd: Annotated[float, Meta(ge=0, le=1)]
    moment: Name


class Claim(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One result of one attack, with all that is needed to repeat it.

    Args:
        by: who claims it, as they name themselves; may be empty.
        settings: sections of settings, complete, as in ``config.yaml``.
        plugins: modules whose parts the settings name; nothing imports them unless somebody types
            ``--plugin``.
        command: repeats training and attack by the settings.
        answers: the question: images, prototypes, labels or membership.
        kind: what was attacked in the end, such as prototypes.
        counterfactual: whether the protocol does not upload that.
        targets, n: asked and answered.
        sha256: of all the rest, see `content_hash`.
    """

    schema: Literal["fedre-privacy/claim"]
    version: Literal[1]
    by: Annotated[str, Meta(max_length=MOST_NAME)]
    what: What
    answers: Name
    kind: Line
    counterfactual: bool
    data: Data
    seeds: Seeds
    verdict: Line
    targets: Count
    n: Count
    measures: Annotated[list[Claimed], Meta(min_length=1, max_length=200)]
    accuracy: Accuracy | None
    training: Made
    attack: Made
    hashes: Hashes
    settings: dict[Name, Any]
    plugins: Annotated[list[Module], Meta(max_length=20)]
    command: Command
    sha256: Full


class Compared(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measure as it was claimed and as it was repeated; None where there is none."""

    key: Name
    group: Group
    claimed: Numbers | None
    repeated: Numbers | None


class Verification(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What came of repeating a claim.

    Args:
        claim: hash of the claim (its ``sha256``).
        by: who repeated it, as they name themselves; may be empty.
        part: what was repeated, one of `PARTS`.
        uploads_same: whether training again gave the uploads and models that were claimed, byte by
            byte; None where nothing was trained, or something else.
        due: whether the same numbers were due, see `comparing.is_due`.
        tolerance: share of the half-width of an interval by which numbers may differ elsewhere.
        outcome: one of `REPEATS`, `WITHIN`, `OTHERWISE`.
    """

    schema: Literal["fedre-privacy/verification"]
    version: Literal[1]
    claim: Full
    by: Annotated[str, Meta(max_length=MOST_NAME)]
    part: Literal["split", "training", "attack", "scores"]
    uploads_same: bool | None
    due: bool
    tolerance: Annotated[float, Meta(ge=0, le=10)]
    outcome: Literal["repeats", "repeats within tolerance", "does not repeat"]
    verdict: Line
    measures: Annotated[list[Compared], Meta(min_length=1, max_length=400)]
    made: Made
    sha256: Full


F = TypeVar("F", Claim, Verification)


def published_schema(kind: type[Claim] | type[Verification]) -> dict[str, Any]:
    """The JSON Schema of a kind of file, as it is published."""
    made = msgspec.json.schema(kind)
    for one in made["$defs"].values():
        one["description"] = inspect.cleandoc(one["description"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def content_hash(content: dict[str, Any]) -> str:
    """SHA-256 of all but the key ``sha256``, see `digest`."""
    return digest({key: value for key, value in content.items() if key != "sha256"})


def digest(value: Any) -> str:
    """SHA-256 (hex) of a value as JSON: keys sorted, no spaces, ASCII."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def sealed(kind: type[F], content: dict[str, Any]) -> F:
    """Make a file's content, with its hash, of everything else that it holds.

    Raises:
        DamagedInputError: something of it cannot be published.
    """
    path = Path("the result")
    whole = schema.converted(msgspec.to_builtins({**content, "sha256": "0" * 64}), kind, path)
    plain = msgspec.to_builtins(whole)
    return parsed(json.dumps({**plain, "sha256": content_hash(plain)}), kind, path)


def write(path: Path, given: Claim | Verification) -> None:
    """Write a claim or a verification, atomically."""
    files.write_json(path, msgspec.to_builtins(given))


def read(path: Path) -> Claim | Verification:
    """Read a published file of either kind, as far as it can be judged by itself.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: it is no such file, or was changed.
    """
    content = _content(files.read_text(path, MOST_BYTES), path)
    told = content.get("schema")
    if told == CLAIM:
        return _made(content, Claim, path)
    if told == VERIFICATION:
        return _made(content, Verification, path)
    raise refused(path, f"calls its schema {schema.short(told)}, not {CLAIM} or {VERIFICATION}")


def parsed(text: str, kind: type[F], path: Path) -> F:
    """Read the text of a file of one kind.

    Raises:
        DamagedInputError: it is none.
    """
    return _made(_content(text, path), kind, path)


def _content(text: str, path: Path) -> dict[str, Any]:
    try:
        content = schema.parse_json(text, once=True)
    except ValueError as error:
        raise refused(path, f"is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise refused(path, "holds no keys")
    for count, (value, depth) in enumerate(_values(content)):
        if count > MOST_VALUES or depth > MOST_DEPTH:
            raise refused(path, "holds too many values or is nested too deeply")
        if isinstance(value, str) and len(value) > MOST_TEXT:
            raise refused(path, f"holds a text of {len(value):,} characters")
        if isinstance(value, str) and (visible(value) != value or set(value) & set("\n\t")):
            raise refused(
                path, f"holds a text with a control character or mark of direction: {value!r:.80}"
            )
    return content


def _values(content: Any) -> Iterator[tuple[Any, int]]:
    """Every value and key with its depth."""
    waiting: list[tuple[Any, int]] = [(content, 1)]
    while waiting:
        value, depth = waiting.pop()
        yield value, depth
        if depth > MOST_DEPTH:
            return
        if isinstance(value, dict):
            waiting += [(one, depth + 1) for pair in value.items() for one in pair]
        elif isinstance(value, list):
            waiting += [(one, depth + 1) for one in value]


def _made(content: dict[str, Any], kind: type[F], path: Path) -> F:
    version = content.get("version")
    if version != VERSION:
        raise refused(
            path, f"has schema version {schema.short(version)}; this version reads {VERSION}"
        )
    try:
        found = schema.converted(content, kind, path)
    except DamagedInputError as error:
        raise DamagedInputError(*error.problems, next_step=ASK) from None
    if content_hash(content) != found.sha256:
        raise refused(
            path, "was changed after it was written: its content does not have the SHA-256 it names"
        )
    bad = [one for one in _numbers(found) if not _possible(one)]
    if bad:
        raise refused(path, f"holds numbers that cannot be: {bad[0]}")
    return found


def _numbers(found: Claim | Verification) -> list[Numbers]:
    if isinstance(found, Claim):
        return [one.numbers for one in found.measures]
    both = [(one.claimed, one.repeated) for one in found.measures]
    return [one for pair in both for one in pair if one is not None]


def _possible(numbers: Numbers) -> bool:
    """Whether intervals run upwards."""
    return all(
        ends is None or ends[0] <= ends[1] for ends in (numbers.interval, numbers.over_interval)
    )


def refused(path: Path, why: str) -> DamagedInputError:
    """The refusal of a published file."""
    return DamagedInputError(f"{path} {why}.", next_step=ASK)


def check_name(by: str) -> None:
    """Refuse a name under which nothing can be published, before anything is computed.

    Raises:
        ConfigError: it is too long, or hides something.
    """
    if len(by) > MOST_NAME or visible(by) != by or set(by) & set("\n\t"):
        raise ConfigError(
            f"--by takes a name of at most {MOST_NAME} characters in one line, without control "
            f"characters and marks of direction; got {schema.short(by)}."
        )
