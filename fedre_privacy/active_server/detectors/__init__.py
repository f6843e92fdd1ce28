"""Tests that a client can run on what it receives, one per file."""
