"""Celery: the tasks, the app of a worker process, and ``install`` for an app of the user."""
