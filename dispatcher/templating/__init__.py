"""Templates of the settings, rendered into bodies when a message is submitted.

``filling`` gives a draft its body; ``sandbox`` is what Jinja2 may do meanwhile, and is imported
only where there is a template: it needs the extra ``templates``.
"""

from dispatcher.templating.filling import Templates

__all__ = ["Templates"]
