"""What a worker process imports, and asks once for practice, before its first question."""

from __future__ import annotations

import ballsbins.accountant
import ballsbins.calibration
import ballsbins.report.prose  # noqa: F401
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins
from ballsbins.web import answers


def up() -> None:
    """Fill the caches that all questions share."""
    for _ in answers.of_run(Mechanism(BallsAndBins(234), 0.6), 1e-6):
        pass
