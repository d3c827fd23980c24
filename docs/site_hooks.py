"""What the site needs beyond its pages: files, decisions, the command line, the limiters.

Called by mkdocs (``hooks`` in mkdocs.yml).
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from dispatcher import errors, limiters
from dispatcher.cli import every_command

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)(#[^)]*)?\)")
_DOCS_LINK = re.compile(r"\]\(((?:\.\./)*docs/[^)#\s]+)")
_README_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(<code>)~?(?:[\w.]+\.)?(\w+(?:</code>))")
_ENTRY = re.compile(r"^::: dispatcher\.Dispatcher\.\w+$", re.MULTILINE)
_CALL = "    options: {heading_level: 3, show_root_full_path: false}"
_NAMED_PAGE = re.compile(r"docs/([\w-]+)\.md")
_SEARCH = 'data-md-component="search" role="dialog"'
_LANGUAGES = {".py": "python", ".lua": "lua"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put a page for each decision into the navigation."""
    paths = sorted((ROOT / "docs/decisions").glob("0*.md"))
    decisions = _section(_section(config.nav or [], "For maintainers"), "Decisions")
    decisions.extend(f"decisions/{path.name}" for path in paths)
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Make the first page, those of commands and limiters, and of files that pages lead to."""
    command = every_command()
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="dispatcher")
    files.append(File.generated(config, "reference/command-line.md", content=text))
    files.append(File.generated(config, "reference/limiters.md", content=_limiters()))
    files.append(File.generated(config, "index.md", content=_first_page()))
    document = (ROOT / "dispatcher/web/openapi.json").read_text()
    files.append(File.generated(config, "openapi.json", content=document))
    for file in list(files.documentation_pages()):
        for match in _LINK.finditer(file.content_string):
            outside = _outside(file.src_uri, match[1])
            if outside is not None and files.get_file_from_path(_page_of(outside)) is None:
                page = _page_of(outside)
                files.append(File.generated(config, page, content=_shown(outside, file.src_uri)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Lead links to files outside of ``docs`` to their pages, and draw the tree of errors."""
    here = page.file.src_uri
    markdown = markdown.replace("<!-- the tree -->", (errors.__doc__ or "").split("::\n\n")[1])

    def led(match: re.Match[str]) -> str:
        outside = _outside(here, match[1])
        if outside is None or here.startswith("files/"):
            return match[0]
        return f"]({relpath(_page_of(outside), str(PurePosixPath(here).parent))}{match[2] or ''})"

    return _ENTRY.sub(rf"\g<0>\n{_CALL}", _LINK.sub(led, markdown))


def on_page_content(html: str, *, page: Page, **_: Any) -> str:
    """Show the names that docstrings mention, without the roles before them, and lead to pages."""
    if page.file.src_uri.startswith("reference/"):
        html = _NAMED_PAGE.sub(r'<a href="../\1.html">\1</a>', html)
    return _ROLE.sub(r"\1\2", html)


def on_post_page(output: str, **_: Any) -> str:
    """Give the theme's search a name, for screen readers."""
    return output.replace(_SEARCH, f'{_SEARCH} aria-label="Search"')


def _limiters() -> str:
    """Return the page of what ``dispatcher.limiters`` exports; its errors have a page already."""
    names = [name for name in limiters.__all__ if not hasattr(errors, name)]
    entries = [f"::: dispatcher.limiters.{name}" for name in names]
    # Its methods are made of coroutines, and are none.
    entries[names.index("Limiter")] += "\n    options: { show_labels: false }"
    intro = "[Choosing a limiter](../limiters.md) describes each algorithm."
    return "\n\n".join(["# Limiters", intro, *entries, ""])


def _first_page() -> str:
    """Return the README, with links as a page in ``docs`` needs them."""
    text = (ROOT / "README.md").read_text()
    return _README_LINK.sub(lambda match: f"]({relpath(match[1], 'docs')}", text)


def _section(nav: list[Any], name: str) -> list[Any]:
    return next(entry[name] for entry in nav if isinstance(entry, dict) and name in entry)


def _outside(page: str, link: str) -> str | None:
    """Return what a link of a page leads to, from the repository's root, if it is not a page."""
    target = normpath(str(PurePosixPath("docs", page).parent / link))
    return None if target.startswith("docs/") else target


def _page_of(path: str) -> str:
    if path == "README.md":
        return "index.md"
    return f"files/{path.removesuffix('.md')}.md"


def _shown(path: str, page: str) -> str:
    file = ROOT / path
    if not file.is_file():
        raise PluginError(f"{page} leads to {path}, which does not exist")
    if file.suffix == ".md":
        return _DOCS_LINK.sub(lambda match: _led_back(path, match), file.read_text())
    language = _LANGUAGES.get(file.suffix, "text")
    return f"# {path}\n\n````{language}\n{file.read_text()}````\n"


def _led_back(path: str, match: re.Match[str]) -> str:
    """Return a link of a file outside of ``docs`` to a page in it, as the file's page needs it."""
    target = normpath(str(PurePosixPath(path).parent / match[1]))
    return f"]({relpath(target, str(PurePosixPath('docs', _page_of(path)).parent))}"
