"""What an attack is played on: uploads that were recorded, and what is known beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from fedre_privacy.defenses.base import Defense

from .settings import AttackSettings

SECRET = "Secret"
"""Heading under which a recording says what its hidden draws follow from."""


class Recording(Protocol):
    """One interface to recorded uploads: a run's folder, another system's files, one's own module.

    The attack itself gets none of it: a question takes an observation out of it, and keeps the
    truth.
    """

    @property
    def name(self) -> str:
        """Its name in titles."""

    @property
    def system(self) -> str:
        """Who uploads: the protocol, or what stands for it."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""

    @property
    def class_names(self) -> Sequence[str]:
        """Names of the classes, in the order of label encodings."""

    @property
    def defenses(self) -> tuple[Defense, ...]:
        """What clients declare to do to their training and uploads, in order."""

    @property
    def active(self) -> str:
        """The mark of a recording whose server did not follow the protocol; else empty."""

    @property
    def bound(self) -> str:
        """What no attack on images can exceed, a sentence; empty where nothing was declared."""

    def extractor(self, client: int, round: int) -> nn.Module:
        """The frozen extractor with which a client made its upload of a round."""

    def secrets(self) -> list[Path]:
        """Files and folders that no attack may open."""

    def plain(self) -> dict[str, Any]:
        """What ``config.yaml`` says of it, beside the settings of an attack."""

    def identity(self) -> dict[str, Any]:
        """What ``record.json`` says of it: which one it is."""

    def provenance(self) -> Mapping[str, str]:
        """Heading to text: what it is and how it was made, for a page."""

    def headline(self) -> Mapping[str, str]:
        """What a page says of it before everything else."""

    def repeat(self, attack: AttackSettings, folder: Path) -> tuple[str, str]:
        """The command that repeats an attack in a folder, and what it does; empty for none."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of a result must know about it, a sentence each."""
