"""Confidence that is a probability, learnt from auxiliary images attacked in the same way."""
