"""A soak: the whole dispatcher on real servers, faults from a seed, and a judge of what came of it.

``python -m tests.soak --seed 1 --minutes 2`` runs it; ``python -m tests.soak.bugs`` tells whether
it would notice.
"""
