"""Examines a deployment, and names a remedy for each finding.

``finding`` defines checks and findings. The checks are functions in ``of_redis``, ``of_store``,
``of_broker``, ``of_clocks``, ``of_work`` and ``of_settings``; ``doctor`` reads the facts and runs
the checks on them.
"""

from dispatcher.operations.doctor.doctor import Doctor, Examined
from dispatcher.operations.doctor.finding import Check, Finding, Level, Verdict

__all__ = ["Check", "Doctor", "Examined", "Finding", "Level", "Verdict"]
