"""The area under the ROC curve: how often a positive example scores above a negative one, ties counting half."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins.errors import InvalidInputError


def area_under_curve(labels: NDArray[Any], scores: NDArray[Any]) -> float:
    """AUC by ranks (the Mann–Whitney statistic), exact also with ties."""
    positive = np.asarray(labels) == 1
    count = int(positive.sum())
    if not 0 < count < len(positive):
        bound = "of both classes"
        advice = "AUC compares positive with negative examples: evaluate on a split that has some of each."
        raise InvalidInputError("the set of labels", "all the same", bound, advice)
    _, inverse, counts = np.unique(np.asarray(scores), return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - 0.5 * (counts - 1)  # the mean rank of each group of ties, counted from 1
    total = float(ranks[inverse][positive].sum())
    return (total - 0.5 * count * (count + 1)) / (count * (len(positive) - count))
