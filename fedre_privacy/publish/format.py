"""The two kinds of files that are published: a claim, and the verification of one.

Everything is declared and bounded: unknown keys, keys given twice, numbers that are not finite and
texts in which something is hidden are refused. Each file holds a hash of its own content, which
finds careless edits. It is no signature: whoever edits a file can compute the hash anew.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from fedre_privacy.core import files
from fedre_privacy.core import typed_yaml as schema
from fedre_privacy.core.errors import ConfigError, DamagedInputError
from fedre_privacy.core.safe_text import visible
from fedre_privacy.core.typed_yaml import Count, Number, Seconds

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


class File(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of a published file: no key more, no key less."""


class Numbers(File, frozen=True):
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

    def __post_init__(self) -> None:
        if any(ends and ends[0] > ends[1] for ends in (self.interval, self.over_interval)):
            raise ValueError("numbers that cannot be: an interval runs down")


class ClaimedMeasure(File, frozen=True):
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


class What(File, frozen=True):
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


class Data(File, frozen=True):
    """The images that were trained on, and how they were shared out, as hashes."""

    sha256: Full
    partition_sha256: Annotated[list[Brief], Meta(min_length=1, max_length=10)]


class Seeds(File, frozen=True):
    """Seeds of the training, of the partition where it has one of its own, of the evaluation."""

    training: Seed
    partition: Seed | None
    evaluation: Seed


class Provenance(File, frozen=True):
    """Where, with what and how long something was computed."""

    device: Line
    versions: Annotated[dict[Name, Name], Meta(max_length=50)]
    seconds: Seconds


class Hashes(File, frozen=True):
    """What the result was computed from.

    Args:
        run_manifest, attack_manifest: of ``manifest.json`` in the folders of run and attack.
        uploads: of the recorded uploads and models, which are the same bytes wherever numbers are.
    """

    run_manifest: Full
    attack_manifest: Full
    uploads: Full


class AccuracyClaim(File, frozen=True):
    """Mean and sd over clients, at the moment that the protocol quotes."""

    mean: Annotated[float, Meta(ge=0, le=1)]
    sd: Annotated[float, Meta(ge=0, le=1)]
    moment: Name


class ResultClaim(File, frozen=True):
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
    measures: Annotated[list[ClaimedMeasure], Meta(min_length=1, max_length=200)]
    accuracy: AccuracyClaim | None
    training: Provenance
    attack: Provenance
    hashes: Hashes
    settings: dict[Name, Any]
    plugins: Annotated[list[Module], Meta(max_length=20)]
    command: Command
    sha256: Full


class MeasureComparison(File, frozen=True):
    """A measure as it was claimed and as it was repeated; None where there is none."""

    key: Name
    group: Group
    claimed: Numbers | None
    repeated: Numbers | None


class Verification(File, frozen=True):
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
    measures: Annotated[list[MeasureComparison], Meta(min_length=1, max_length=400)]
    made: Provenance
    sha256: Full


F = TypeVar("F", ResultClaim, Verification)
KINDS: dict[str, type[ResultClaim] | type[Verification]] = {
    CLAIM: ResultClaim,
    VERIFICATION: Verification,
}


def content_hash(content: dict[str, Any]) -> str:
    """SHA-256 of all but the key ``sha256``, see `digest`."""
    return digest({key: value for key, value in content.items() if key != "sha256"})


def digest(value: Any) -> str:
    """SHA-256 (hex) of a value as JSON: keys sorted, no spaces, ASCII."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def hash_content(kind: type[F], content: dict[str, Any]) -> F:
    """Make a file's content, with its hash, of everything else that it holds.

    Raises:
        DamagedInputError: something of it cannot be published.
    """
    path = Path("the result")
    plain = msgspec.to_builtins({**content, "sha256": "0" * 64})
    plain = msgspec.to_builtins(schema.convert_value(plain, kind, path))
    plain["sha256"] = content_hash(plain)
    return _check_hash(json.dumps(plain), path)  # type: ignore[return-value]


def write(path: Path, given: ResultClaim | Verification) -> None:
    """Write a claim or a verification, atomically."""
    files.write_json(path, msgspec.to_builtins(given))


def read_published(path: Path) -> ResultClaim | Verification:
    """Read a published file of either kind, as far as it can be judged by itself.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: it is no such file, or was changed.
    """
    return _check_hash(files.read_text(path, MOST_BYTES), path)


def _check_hash(text: str, path: Path) -> ResultClaim | Verification:
    try:
        content = schema.parse_json(text, once=True)
    except ValueError as error:
        raise refuse_file(path, f"is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise refuse_file(path, "holds no keys")
    _check_texts(content, path)
    kind, version = KINDS.get(str(content.get("schema"))), content.get("version")
    if kind is None:
        wrong = schema.short(content.get("schema"))
        raise refuse_file(path, f"calls its schema {wrong}, not {' or '.join(KINDS)}")
    if version != VERSION:
        wrong = schema.short(version)
        raise refuse_file(path, f"has schema version {wrong}; this version reads {VERSION}")
    try:
        found: ResultClaim | Verification = schema.convert_value(content, kind, path)
    except DamagedInputError as error:
        raise DamagedInputError(*error.problems, next_step=ASK) from None
    if content_hash(content) != found.sha256:
        raise refuse_file(
            path, "was changed after it was written: its content does not have the SHA-256 it names"
        )
    return found


def _check_texts(content: Any, path: Path) -> None:
    """Refuse more values and levels than a file may hold, and texts that hide something."""
    waiting, count = [(content, 1)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > MOST_VALUES or depth > MOST_DEPTH:
            raise refuse_file(path, "holds too many values or is nested too deeply")
        if isinstance(value, dict):
            waiting += [(one, depth + 1) for pair in value.items() for one in pair]
        elif isinstance(value, list):
            waiting += [(one, depth + 1) for one in value]
        elif isinstance(value, str) and len(value) > MOST_TEXT:
            raise refuse_file(path, f"holds a text of {len(value):,} characters")
        elif isinstance(value, str) and _hides(value):
            raise refuse_file(
                path, f"holds a text with a control character or mark of direction: {value!r:.80}"
            )


def _hides(text: str) -> bool:
    return visible(text) != text or not {"\n", "\t"}.isdisjoint(text)


def refuse_file(path: Path, why: str) -> DamagedInputError:
    """The refusal of a published file."""
    return DamagedInputError(f"{path} {why}.", next_step=ASK)


def check_name(by: str) -> None:
    """Refuse a name under which nothing can be published, before anything is computed.

    Raises:
        ConfigError: it is too long, or hides something.
    """
    if len(by) > MOST_NAME or _hides(by):
        raise ConfigError(
            f"--by takes a name of at most {MOST_NAME} characters in one line, without control "
            f"characters and marks of direction; got {schema.short(by)}."
        )
