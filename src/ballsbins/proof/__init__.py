"""Proved bounds on δ: ball arithmetic with an explicit bound on everything that is left out (docs/proof.md)."""
