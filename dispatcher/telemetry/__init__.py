"""Reports of the work: journal, hooks, metrics, traces, signs of life."""
