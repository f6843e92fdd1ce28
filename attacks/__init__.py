"""Attacks: they receive an Observation and never data, protocols or truth."""

if __name__ != "fedre_privacy.attacks":
    raise ImportError("import fedre_privacy.attacks, not the top-level directory")
