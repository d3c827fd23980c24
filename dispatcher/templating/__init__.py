"""Templates of the settings, rendered into bodies when a message is submitted.

``templates`` gives a draft its body; ``sandbox`` is what Jinja2 may do meanwhile, and is imported
only where there is a template: it needs the extra ``templates``.
"""

from dispatcher.templating.templates import Templates

__all__ = ["Templates"]
