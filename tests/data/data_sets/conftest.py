"""Small files in the two formats, written by hand."""

import pytest

from ballsbins.data.criteo import DISPLAY_ADS, SPONSORED_SEARCH


@pytest.fixture
def ads_line():
    """One line of display ads; fields may be replaced by name."""

    def line(**fields):
        values = dict.fromkeys(DISPLAY_ADS.columns, "") | {"label": "0"} | fields
        return "\t".join(values[name] for name in DISPLAY_ADS.columns) + "\n"

    return line


@pytest.fixture
def search_line():
    """One line of sponsored search."""

    def line(**fields):
        values = dict.fromkeys(SPONSORED_SEARCH.columns, "-1") | {"Sale": "0"} | fields
        return "\t".join(values[name] for name in SPONSORED_SEARCH.columns) + "\n"

    return line
