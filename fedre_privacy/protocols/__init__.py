"""Protocols, one per file, each as its paper's algorithm box."""
