"""Where the parts meet: settings in, wired use cases out.

Nothing connects before it is used, and in a worker nothing is built before the fork.

``built`` is how a part is built once, when first asked for. ``servers`` holds what talks to Redis,
SQL and Celery; on it stands ``submitting``, on that ``working``, which serves a worker. ``parts``
adds what operators look at and closes all: one chain of classes, so that every part is an attribute
of ``Parts``. ``process`` keeps the ``Parts`` of this process.
"""

from dispatcher.bootstrap.parts import Parts
from dispatcher.bootstrap.process import close_here, finish_here, here, stop_here
from dispatcher.bootstrap.servers import connect_redis

__all__ = ["Parts", "close_here", "connect_redis", "finish_here", "here", "stop_here"]
