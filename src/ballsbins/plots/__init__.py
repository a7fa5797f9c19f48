"""Pictures of results: takes answers of the accountant, computes nothing, and returns matplotlib Axes."""

from ballsbins.plots.pictures import (
    auc_against_noise,
    epsilon_against_epochs,
    epsilon_against_noise,
    noise_against_batch_size,
    privacy_curves,
)
from ballsbins.plots.style import save

__all__ = [
    "auc_against_noise",
    "epsilon_against_epochs",
    "epsilon_against_noise",
    "noise_against_batch_size",
    "privacy_curves",
    "save",
]
