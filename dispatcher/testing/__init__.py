"""For the tests of those who use the dispatcher: doubles, messages, and a suite for transports.

Nothing here needs a test framework.
"""

from dispatcher.testing.messages import a_message
from dispatcher.testing.transport_suite import TransportSuite
from dispatcher.transports.memory import MemoryTransport

__all__ = ["MemoryTransport", "TransportSuite", "a_message"]
