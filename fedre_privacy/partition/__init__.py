"""Who holds which images: partitions of a data set over clients, one scheme per file."""

from .base import ClientSplit, Partition, partitions, split_clients

__all__ = ["Partition", "ClientSplit", "partitions", "split_clients"]
