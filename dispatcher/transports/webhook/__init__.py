"""The webhook transport: a message is a POST to a URL.

From the ground up: ``addresses`` judges where a request may go, ``target`` reads URLs, ``wire``
connects to judged addresses within a deadline, ``connections`` keeps them, ``signatures`` signs,
``answers`` says what an answer means, and ``transport`` puts them together.
"""

from dispatcher.transports.webhook.signatures import receiver_secret
from dispatcher.transports.webhook.transport import WebhookTransport

__all__ = ["WebhookTransport", "receiver_secret"]
