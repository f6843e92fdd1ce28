"""Solvers that take class statistics apart into single representations, all pure functions."""
