"""Questions that an attack can answer, by the name in ``Attack.answers``."""

from .base import Card, Game, Question
from .images import Images

QUESTIONS: dict[str, Question] = {
    "images": Images(),
}

__all__ = ["QUESTIONS", "Card", "Game", "Question"]
