"""Entanglement schemes, one per file."""
