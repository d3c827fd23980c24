"""Examines a deployment, and names a remedy for each finding.

``finding`` says what a check is and what it answers. The checks are in ``of_redis``, ``of_store``,
``of_broker``, ``of_clocks``, ``of_work`` and ``of_settings``, one function each; ``doctor`` asks
the rooms and lets the checks judge the answers.
"""

from dispatcher.operations.doctor.doctor import Doctor, Examined
from dispatcher.operations.doctor.finding import Check, Finding, Level, Verdict

__all__ = ["Check", "Doctor", "Examined", "Finding", "Level", "Verdict"]
