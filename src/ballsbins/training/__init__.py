"""From data and a target to a trained model whose privacy statement matches what was run."""
