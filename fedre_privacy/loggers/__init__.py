"""Experiment trackers that trainings, attacks and benchmarks report to: one logger per file.

A logger inherits from `fedre_privacy.loggers.base.Logger`; other packages bring theirs by the
entry-point group of this name.
"""
