"""Check archives against what must hold: all objects are there, and their bytes fit together."""

from sidetier.archive.verify.findings import Finding, FindingKind, Severity, Unread
from sidetier.archive.verify.run import VerifyReport, VerifyRequest, VerifyTotals, verify

__all__ = [
    "Finding",
    "FindingKind",
    "Severity",
    "Unread",
    "VerifyReport",
    "VerifyRequest",
    "VerifyTotals",
    "verify",
]
