"""What Celery runs: tasks, and the installation into an app of the user's."""
