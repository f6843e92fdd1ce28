"""Command lines: parsing and printing only."""
