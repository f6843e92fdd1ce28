"""Threat models, one per file: what an attacker holds."""
