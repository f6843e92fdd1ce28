"""Metrics: one number for each pair of recovered and original image."""

from .base import DEFAULT_METRICS, Metric, metrics, require_unit_range

__all__ = ["DEFAULT_METRICS", "Metric", "metrics", "require_unit_range"]
