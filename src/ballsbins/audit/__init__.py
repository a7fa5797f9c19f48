"""Empirical checks of a privacy claim: attacks on the mechanism with worst-case data, and on one training run."""

from ballsbins.audit.claim_test import Audit, audit
from ballsbins.audit.one_run import OneRunAudit
from ballsbins.audit.queries import answer_queries

__all__ = ["Audit", "OneRunAudit", "answer_queries", "audit"]
