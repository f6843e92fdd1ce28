"""Words of the published files, and defaults of the commands that read them."""

from pathlib import Path

SPLIT, TRAINING, ATTACK, SCORES = PARTS = ("split", "training", "attack", "scores")
"""What is repeated: everything with images shared out anew, everything as it was, the attack on a
run that is there, its scores alone."""
REPEATS, WITHIN, OTHERWISE = "repeats", "repeats within tolerance", "does not repeat"
"""Outcomes of repeating a claim."""

TOLERANCE = 0.5
"""Share of the half-width of an interval by which numbers may differ, unless another is given."""
AGAIN = Path("runs") / "again"
"""Where what is repeated is kept, apart from other runs."""
