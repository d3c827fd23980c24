"""The functions of the paths, one module for each subject. ``api.py`` has the list of paths."""
