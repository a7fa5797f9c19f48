"""The two Criteo data sets of the paper's experiment: read the real files, or generate files in their format."""

from ballsbins.data.criteo.formats import DISPLAY_ADS, FORMATS, SPONSORED_SEARCH, Format
from ballsbins.data.criteo.generate import Generated, generate
from ballsbins.data.criteo.prepare import Prepared, prepare

__all__ = [
    "DISPLAY_ADS",
    "FORMATS",
    "SPONSORED_SEARCH",
    "Format",
    "Generated",
    "Prepared",
    "generate",
    "prepare",
]
