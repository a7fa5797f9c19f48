"""The paper's Monte Carlo accountant, corrected, and past it: bounds on δ with a stated confidence."""

from __future__ import annotations

from ballsbins.accounting.monte_carlo.method import MonteCarlo

__all__ = ["MonteCarlo"]
