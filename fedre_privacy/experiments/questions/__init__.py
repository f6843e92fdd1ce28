"""Questions that an attack can answer, one per file, by the name in ``Attack.answers``."""
