"""Batches for data that does not fit in memory: an engine writes files in batch order, read front to back."""

from ballsbins.batch_files.batch import Batch
from ballsbins.batch_files.format import Manifest
from ballsbins.batch_files.reader import BatchFiles

__all__ = ["Batch", "BatchFiles", "Manifest"]
