"""Redis: key names, errors, scripts, and the client past redis-py."""
