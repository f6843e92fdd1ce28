"""Attacks run away from the run: in a process of their own that gets an observation as bytes."""
