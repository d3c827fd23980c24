"""Examines a deployment, and names a remedy for each finding.

``finding`` defines checks and findings. The modules ``*_checks`` have a function for each check;
``doctor`` reads the facts and runs the checks on them.
"""

from dispatcher.operations.doctor.doctor import Doctor, Examination
from dispatcher.operations.doctor.finding import Check, Finding, Level, Verdict

__all__ = ["Check", "Doctor", "Examination", "Finding", "Level", "Verdict"]
