"""Accounting of balls-and-bins: each example goes to one uniformly random batch of the epoch."""
