"""The use cases on simulated tools: one seed is one story, with everything that can go wrong."""
