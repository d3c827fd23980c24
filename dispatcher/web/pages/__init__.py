"""The page: what is booked and what will be, for a person with a browser. Extra ``web``.

``site`` has what all pages share: access, the refusal of foreign calls, headers, templates. Each of
the other modules has a subject, and a list ``PAGES`` of its paths.
"""

from dispatcher.web.pages.loopback import Loopback
from dispatcher.web.pages.sign_in import SignIn
from dispatcher.web.pages.site import Access, page

__all__ = ["Access", "Loopback", "SignIn", "page"]
