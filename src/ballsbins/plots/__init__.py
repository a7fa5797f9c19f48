"""Pictures of results. Takes what the accountant answered, computes nothing, returns matplotlib Axes."""

from ballsbins.plots.privacy import privacy_curves
from ballsbins.plots.style import save

__all__ = ["privacy_curves", "save"]
