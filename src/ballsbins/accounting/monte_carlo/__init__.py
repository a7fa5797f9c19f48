"""The paper's Monte Carlo accountant, corrected, and past it: bounds on δ with a stated confidence."""
