"""Who holds which images: partitions of a data set over clients, one scheme per file."""

from .base import Partition, Split, partitions, split

__all__ = ["Partition", "Split", "partitions", "split"]
