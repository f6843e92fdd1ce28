"""Runs: their settings, the training that makes them, and the folder that holds them."""
