"""Redis: key names, errors, clients, and the reading and running of scripts."""
