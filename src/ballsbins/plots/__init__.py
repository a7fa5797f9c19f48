"""Pictures of results. Takes what the accountant answered, computes nothing, returns matplotlib Axes."""

from ballsbins.plots.privacy import privacy_curves
from ballsbins.plots.style import save
from ballsbins.plots.tradeoffs import epsilon_against_epochs, epsilon_against_noise, noise_against_batch_size
from ballsbins.plots.utility import auc_against_noise

__all__ = [
    "auc_against_noise",
    "epsilon_against_epochs",
    "epsilon_against_noise",
    "noise_against_batch_size",
    "privacy_curves",
    "save",
]
