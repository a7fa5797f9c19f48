"""The paper's Monte Carlo accountant, corrected and extended: bounds on δ with a stated confidence."""

from __future__ import annotations

from ballsbins.accounting.monte_carlo.method import MonteCarlo
from ballsbins.accounting.monte_carlo.orders import PAPER as PAPER_ORDERS

__all__ = ["PAPER_ORDERS", "MonteCarlo"]
