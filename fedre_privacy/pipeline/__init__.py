"""Wiring: resolve settings, connect the rooms, write the run folder."""
