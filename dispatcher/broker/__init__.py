"""The broker: publishing, what a worker takes from it, coming back to it, what it is asked."""
