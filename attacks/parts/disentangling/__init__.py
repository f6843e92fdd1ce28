"""Solvers that work class prototypes out of mixtures of them, one per file, all pure functions."""
