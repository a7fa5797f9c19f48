"""Differentially private training with balls-and-bins batches, and its exact privacy."""

__version__ = "0.1.0"
