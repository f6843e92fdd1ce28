"""Which images below a folder are of which class and part: by folders, or by labels.csv."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..core.errors import DamagedInputError, IncompatibleError
from ..core.units import first_few, plural
from .files import UNREADABLE, Tree, is_image

LAYOUT = (
    "root/<class>/<image>; or root/train/<class>/<image> with root/test or root/val beside it; or "
    "images without folders, with labels.csv (file,label) where they are of several classes"
)
ROLES = {
    "train": "train", "training": "train", "test": "test", "testing": "test", "val": "val",
    "valid": "val", "validation": "val",
}  # fmt: skip
"""Names of folders, in small letters, that are parts of a data set."""

LABELS = "labels.csv"
FILE_COLUMNS = ("file", "filename", "file_name", "image", "image_id", "id", "name", "path")
LABEL_COLUMNS = ("label", "class", "category", "target")
ONE_CLASS = "image"
"""The class of images that nothing tells apart."""

BESIDE = (
    ".csv", ".db", ".htm", ".html", ".ini", ".ipynb", ".json", ".jsonl", ".log", ".md", ".pdf",
    ".py", ".rst", ".tsv", ".txt", ".xml", ".yaml", ".yml",
)  # fmt: skip
"""Endings of files that lie beside images and are none."""

Part = dict[str, list[str]]
"""Class to its images, as the tree names them."""


@dataclass(frozen=True)
class ImagesByClass:
    """The images of each class.

    Args:
        classes: in the order of their numbers.
        train, test: the two parts.
        notes: what was left out or assumed, a sentence each.
    """

    classes: tuple[str, ...]
    train: Part
    test: Part
    notes: tuple[str, ...]


def find_classes(tree: Tree) -> ImagesByClass:
    """Find classes and parts.

    Raises:
        DamagedInputError: labels.csv cannot be read.
        IncompatibleError: another layout, or one that can be read in two ways.
    """
    images = [name for name in tree.names if is_image(name)]
    prefix, names = _strip_outer_folders(images)
    parts, notes = _train_and_test_folders(tree, names)
    lone = [top for top in prefix.split("/") if top.lower() in ROLES]
    if lone:
        notes.append(f"All images lie in {lone[0]}/; they count as training images.")
    inside = {part: _inside(names, part) for part in parts}
    folders = {name.split("/")[0] for own in inside.values() for name in own if "/" in name}
    table = _table(tree, images) if len(folders) < 2 else None
    if table is not None:
        made = _by_table(tree, table, prefix, inside)
    elif folders:
        made = _by_folder(tree, prefix, inside)
    elif images:
        made = _one_class(prefix, inside)
    else:
        raise _no_classes(tree)
    extra = sorted(set(made.test) - set(made.train))
    if extra:
        hint = "For the official Tiny ImageNet folder use --dataset tinyimagenet."
        raise IncompatibleError(
            f"{tree.root} has test classes without training images: {', '.join(extra[:5])}. "
            "Needed: the same class folders in both parts.",
            next_step=hint if extra == ["images"] else "Move or remove those folders.",
        )
    every = (*tree.notes, *notes, *made.notes, *other_endings(tree))
    return ImagesByClass(made.classes, made.train, made.test, every)


def _no_classes(tree: Tree) -> IncompatibleError:
    some = ", ".join(tree.names[:3]) or "no files"
    return IncompatibleError(
        f"{tree.root} has no class folders with images; it holds {some}. Needed: {LAYOUT}.",
        *other_endings(tree),
    )


def _strip_outer_folders(names: list[str]) -> tuple[str, list[str]]:
    """Leave out folders around everything, as most archives have."""
    prefix = ""
    while len(tops := {name.split("/")[0] for name in names}) == 1:
        (top,) = tops
        if ROLES.get(top.lower()) == "train" or any(name.count("/") < 2 for name in names):
            break
        prefix += f"{top}/"
        names = [name.split("/", 1)[1] for name in names]
    return prefix, names


def _train_and_test_folders(tree: Tree, names: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return the folders that are the training and the test part, or nothing above classes.

    A folder with the name of a part may be a class. It is a part where all others are parts too, or
    where the held-out part has classes of the training part; it is a class where no folder holds
    folders. What is left is refused.
    """
    below: dict[str, set[str]] = {}
    for name in names:
        first, *more = name.split("/")
        if more:
            below.setdefault(first, set()).update(more[:1] if len(more) > 1 else ())
    named: dict[str, list[str]] = {"train": [], "test": [], "val": []}
    others = [top for top in below if top.lower() not in ROLES]
    for top in below:
        if top not in others:
            named[ROLES[top.lower()]].append(top)
    held = named["test"] or named["val"]
    train = named["train"]
    if not train and held and not others:
        raise _no_classes(tree)
    if not held and not train:
        return ("",), []
    if not train:
        if any(below[top] & set(others) for top in held):
            raise _two_ways(tree, held, others)
        return ("",), [f"{', '.join(held)} was read as a class, like {', '.join(others[:3])}."]
    if any(len(tops) > 1 for tops in named.values()):
        twice = next(tops for tops in named.values() if len(tops) > 1)
        raise IncompatibleError(
            f"{tree.root} has {' and '.join(twice)}, which name the same part. Needed: {LAYOUT}.",
            next_step="Move one into the other, or away.",
        )
    if others:
        clear = held and below[train[0]] and below[held[0]] <= below[train[0]]
        if not clear and not any(below.values()):
            roles = ", ".join([*train, *held])
            return ("",), [f"{roles} was read as a class, like {', '.join(others[:3])}."]
        if not clear:
            raise _two_ways(tree, [*train, *held], others)
    told = []
    if others:
        told.append(f"Left out, being neither a training nor a test part: {', '.join(others)}.")
    loose = sum("/" not in name for name in names)
    if loose:
        told.append(f"Left out, lying beside the parts: {plural(loose, 'image')}.")
    chosen = [*train, *held]
    if any(top not in ROLES.values() for top in chosen):
        told.append(f"{train[0]} was read as the training part, {held[0]} as the test part."
                    if held else f"{train[0]} was read as the training part.")  # fmt: skip
    if named["test"] and named["val"]:
        left = named["val"][0]
        told.append(f"{tree.root.name} has {held[0]}/ and {left}/; {left}/ was not used.")
    return tuple(f"{top}/" for top in chosen), told


def _two_ways(tree: Tree, parts: Sequence[str], others: Sequence[str]) -> IncompatibleError:
    some = ", ".join(others[:3])
    return IncompatibleError(
        f"{tree.root} holds {', '.join(parts)} beside {some}: {parts[0]} may be a part of the data "
        f"set or a class. Needed: {LAYOUT}.",
        next_step=f"If it is a class, rename it; if it is a part, move {some} away.",
    )


def _inside(names: Sequence[str], part: str) -> list[str]:
    return [name.removeprefix(part) for name in names if name.startswith(part)]


def _by_folder(tree: Tree, prefix: str, inside: Mapping[str, Sequence[str]]) -> ImagesByClass:
    found, strays = _by_class(
        prefix, inside, lambda part, name: name.split("/")[0] if "/" in name else None
    )
    kept = sum(len(own) for part in found for own in part.values())
    if list(inside) == [""] and strays >= kept:
        raise IncompatibleError(
            f"{tree.root} holds {plural(strays, 'image')} beside its class folders, and "
            f"{kept} inside. Needed: {LAYOUT}.",
            next_step="Move the images into class folders, or the folders away.",
        )
    notes = []
    if strays:
        notes.append(f"Left out, lying beside the class folders: {plural(strays, 'image')}.")
    empty = _empty(tree, {prefix, *(prefix + part for part in inside)})
    if empty:
        some = first_few(empty, 5)
        notes.append(f"Left out, being empty of images: {plural(len(empty), 'folder')} ({some}).")
    return ImagesByClass(tuple(sorted(found[0])), found[0], found[1], tuple(notes))


def _by_class(
    prefix: str, inside: Mapping[str, Sequence[str]], label_of: Callable[[str, str], str | None]
) -> tuple[tuple[Part, Part], int]:
    """The images of each class of the training and the test part, and how many have no class."""
    found: list[Part] = [{}, {}]
    strays = 0
    for number, (part, names) in enumerate(inside.items()):
        for name in names:
            label = label_of(part, name)
            strays += label is None
            if label is not None:
                found[number].setdefault(label, []).append(prefix + part + name)
    return (found[0], found[1]), strays


def _empty(tree: Tree, above: Collection[str]) -> list[str]:
    """The folders right below some that hold no image, at any depth."""
    held = {str(at) for name in tree.names if is_image(name) for at in PurePosixPath(name).parents}
    return [
        name for name in tree.folders if name not in held and name[: name.rfind("/") + 1] in above
    ]


def _one_class(prefix: str, inside: Mapping[str, Sequence[str]]) -> ImagesByClass:
    (train, test), _ = _by_class(prefix, inside, lambda part, name: ONE_CLASS)
    note = (
        f"There are no class folders and no {LABELS} (file,label): all images are of one class. A "
        "classifier of one class learns nothing and its gradients are zero, so attacks on "
        "gradients and updates say nothing here."
    )
    return ImagesByClass((ONE_CLASS,), train, test, (note,))


def _by_table(
    tree: Tree, name: str, prefix: str, inside: Mapping[str, Sequence[str]]
) -> ImagesByClass:
    every = [prefix + part + image for part, names in inside.items() for image in names]
    labels, absent = _labels(tree, name, every)
    (train, test), unlabelled = _by_class(
        prefix, inside, lambda part, image: labels.get(prefix + part + image)
    )
    if not train:
        raise IncompatibleError(
            f"{name} of {tree.root} names none of its training images. Needed: one line for each, "
            "its file (1.jpg, or sub/1.jpg) and its label.",
        )
    number = all(label.isdecimal() for label in train)
    classes = sorted(train, key=int) if number else sorted(train)
    notes = [f"The classes are those of {name}."]
    if unlabelled:
        notes.append(f"Left out, having no label in {name}: {plural(unlabelled, 'image')}.")
    if absent:
        notes.append(f"Without an image here: {plural(absent, 'line')} of {name}.")
    return ImagesByClass(tuple(classes), train, test, tuple(notes))


def _table(tree: Tree, images: Sequence[str]) -> str | None:
    """The name of the labels.csv above all images."""
    for name in sorted(tree.names, key=lambda name: -name.count("/")):
        above = name[: name.rfind("/") + 1]
        if name.lower() == above.lower() + LABELS and images:
            if all(image.startswith(above) for image in images):
                return name
    return None


def _labels(tree: Tree, name: str, images: Sequence[str]) -> tuple[dict[str, str], int]:
    """The label of each image that a table names, and the number of its lines for no image."""
    try:
        text = tree.read(name).decode("utf-8-sig")
        head = text.split("\n", 1)[0]
        sign = max(",;\t", key=head.count)
        table = csv.reader(io.StringIO(text), delimiter=sign)
        rows = [[cell.strip() for cell in row] for row in table]
    except (*UNREADABLE, csv.Error) as error:
        raise DamagedInputError(
            f"{name} of {tree.root} cannot be read as a table ({error}).",
            next_step="Save it as UTF-8 text with the header file,label.",
        ) from None
    header = [cell.lower() for cell in rows[0]] if rows else []
    file = next((header.index(word) for word in FILE_COLUMNS if word in header), None)
    label = next((header.index(word) for word in LABEL_COLUMNS if word in header), None)
    if file is None or label is None:
        raise DamagedInputError(
            f"{name} of {tree.root} begins with {head.strip()[:60] or 'nothing'}. Needed: the "
            "header file,label.",
            next_step="Add that line at its top.",
        )
    called = _table_names(name[: name.rfind("/") + 1], images)
    out: dict[str, str] = {}
    absent = 0
    for row in rows[1:]:
        given, of = (row[at] if at < len(row) else "" for at in (file, label))
        image = called.get(given.replace("\\", "/").removeprefix("./"))
        if image is None or not of:
            absent += image is None and bool(row)
            continue
        if out.setdefault(image, of) != of:
            raise DamagedInputError(
                f"{name} of {tree.root} gives {given} two labels, {out[image]} and {of}.",
                next_step="Remove one of the lines.",
            )
    return out, absent


def _table_names(above: str, images: Sequence[str]) -> dict[str, str]:
    """What a table may call images: a path, a file's name, each without its ending; if unique."""
    calls: dict[str, set[str]] = {}
    for image in images:
        path = PurePosixPath(image.removeprefix(above))
        for call in (str(path), path.name, str(path.with_suffix("")), path.stem):
            calls.setdefault(call, set()).add(image)
    return {call: meant.pop() for call, meant in calls.items() if len(meant) == 1}


def other_endings(tree: Tree) -> tuple[str, ...]:
    """Count the files that may be images of a kind that is not read."""
    endings = Counter(
        PurePosixPath(name).suffix.lower() or "no ending"
        for name in tree.names
        if not is_image(name) and (PurePosixPath(name).suffix or "/" in name)
    )
    for ending in BESIDE:
        endings.pop(ending, None)
    if not endings:
        return ()
    some = ", ".join(f"{ending} {count}" for ending, count in endings.most_common(5))
    return (f"Left out by their endings: {plural(endings.total(), 'file')} ({some}).",)
