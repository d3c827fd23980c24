"""Redis: key names, errors, scripts, clients, and script calls without redis-py's overhead."""
