"""The broker: the queue, the items in it, reconnection, and the survey for the doctor."""
