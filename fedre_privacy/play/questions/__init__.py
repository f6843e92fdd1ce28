"""Questions that an attack can answer, by the name in ``Attack.answers``."""

from .base import Card, Game, Measure, Question
from .images import Images
from .labels import Labels
from .membership import Membership
from .prototypes import PrototypesQuestion

QUESTIONS: dict[str, Question] = {
    "images": Images(),
    "prototypes": PrototypesQuestion(),
    "labels": Labels(),
    "membership": Membership(),
}

__all__ = ["QUESTIONS", "Card", "Game", "Measure", "Question"]
