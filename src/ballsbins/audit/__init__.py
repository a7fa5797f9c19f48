"""An empirical check of a privacy claim: run the mechanism many times on its worst data, and try to tell."""

from ballsbins.audit.queries import answer_queries
from ballsbins.audit.run import Audit, audit

__all__ = ["Audit", "answer_queries", "audit"]
