"""Evaluation: metrics, matching, floors and figures. It never sees attacks or protocols.

The registry of metrics is `fedre_privacy.eval.metrics.metrics`; figures are in `.report`.
"""

if __name__ != "fedre_privacy.eval":
    raise ImportError("import fedre_privacy.eval, not the top-level directory")

from .floors import FLOORS, PublicImages, floor_answers
from .identification import Identification, draw_galleries, identify
from .matching import RULES, Match, matcher, mean_images, support_sizes
from .measures import Card, Measure, Verdict
from .metrics.base import DEFAULT_METRICS, Metric
from .score import Scores, evaluate

__all__ = [
    "DEFAULT_METRICS",
    "FLOORS",
    "RULES",
    "Card",
    "Identification",
    "Match",
    "Measure",
    "Metric",
    "PublicImages",
    "Scores",
    "Verdict",
    "draw_galleries",
    "evaluate",
    "floor_answers",
    "identify",
    "matcher",
    "mean_images",
    "support_sizes",
]
