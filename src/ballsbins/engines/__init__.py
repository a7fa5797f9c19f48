"""Batches of data that does not fit in memory: files in batch order, written by an engine, read front to back."""

from ballsbins.engines.manifest import Manifest
from ballsbins.engines.reader import BatchFiles

__all__ = ["BatchFiles", "Manifest"]
