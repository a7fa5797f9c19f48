"""Proved bounds on δ: ball arithmetic with an explicit bound for everything that is left out (docs/proof.md)."""
