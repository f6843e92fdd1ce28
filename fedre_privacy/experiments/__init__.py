"""Attacks on runs: targets are chosen, attacks see an observation, the truth scores the answer."""
