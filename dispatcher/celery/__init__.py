"""Celery: its configuration, the queue, the tasks of a worker, and ``install``."""
