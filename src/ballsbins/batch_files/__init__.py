"""Batches of data that does not fit in memory: files in batch order, written by an engine, read front to back."""

from ballsbins.batch_files.format import Manifest
from ballsbins.batch_files.reader import BatchFiles

__all__ = ["BatchFiles", "Manifest"]
