"""Sends e-mail to a mail server.

``address`` and ``mail`` know what an e-mail may be and make one, ``server`` reads the options,
``wire`` speaks the protocol by a deadline, ``connection`` knows what answers mean, ``pool`` keeps
connections open, ``transport`` joins them.
"""

from dispatcher.transports.smtp.transport import SmtpTransport

__all__ = ["SmtpTransport"]
