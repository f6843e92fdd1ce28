"""Defences that act on the client's side before anything is uploaded."""

if __name__ != "fedre_privacy.defenses":
    raise ImportError("import fedre_privacy.defenses, not the top-level directory")
