"""An empirical check of a privacy claim: run the mechanism many times on its worst data, and try to tell."""

from ballsbins.audit.claim_test import Audit, audit
from ballsbins.audit.queries import answer_queries

__all__ = ["Audit", "answer_queries", "audit"]
