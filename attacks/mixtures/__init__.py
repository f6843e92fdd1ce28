"""Solvers that work class prototypes and labels out of mixtures of them, all pure functions."""
