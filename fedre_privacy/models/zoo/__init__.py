"""Architectures: one backbone family per file.

torchvision is imported where a backbone is built, since it takes longer than all of ours.
"""

from .base import Architecture, architectures

__all__ = ["Architecture", "architectures"]
