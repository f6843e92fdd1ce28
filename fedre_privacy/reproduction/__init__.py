"""Experiments of the papers that need no recorded run: communication tables and the toy."""
