"""What may be published: the card of a run, its privacy statement, the check of another party's card, citations."""

from ballsbins.report.card import Card
from ballsbins.report.card_parts import FloatingPoint
from ballsbins.report.citation import citation
from ballsbins.report.statement import Statement
from ballsbins.report.total import total_statement

__all__ = ["Card", "FloatingPoint", "Statement", "citation", "total_statement"]
