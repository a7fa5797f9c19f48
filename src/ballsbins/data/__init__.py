"""Prepared data sets, and the two public ones of the paper's experiment."""
