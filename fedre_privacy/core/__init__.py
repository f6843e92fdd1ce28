"""Core: types, registry, settings, errors, random streams, files. Imports nothing of ours."""
