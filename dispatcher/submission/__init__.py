"""The use cases of callers: submit messages, change them, read about them.

``pipeline`` accepts drafts, one or many: validate, recall, reserve, store, enqueue; ``sinks`` store
its result in a transaction of their own, in one of the caller's, or not at all. ``validation``
judges drafts, ``reserver`` reserves and looks again, ``enqueuer`` enqueues messages inside the
horizon. ``changes`` cancels, reschedules and updates messages, ``moves`` gives them other times,
``decisions`` retries failed messages and releases or drops held ones, ``lists`` keeps the pauses
and the suppressions, and erases recipients. ``reads`` tells which times of a scope fit, and all
about one message.
"""
