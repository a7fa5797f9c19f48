"""Train a model from data and a privacy target, with a privacy statement that matches what was run."""
