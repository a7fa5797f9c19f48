"""Privacy of a mechanism from plain numbers (σ, T, epochs → ε, δ). Knows nothing of data or batches."""
