"""The use cases of those who submit: ``schedule`` judges a draft, ``submission`` does the rest."""

from dispatcher.submission.schedule import ValidDraft, judge_times, schedule
from dispatcher.submission.submission import Submission

__all__ = ["Submission", "ValidDraft", "judge_times", "schedule"]
