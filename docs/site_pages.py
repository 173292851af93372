"""Adds pages to the documentation site whose source is elsewhere in the repository, and makes links between them.

The site (mkdocs.yml) consists of the pages in ``docs/`` and of those that are made here: the README as the home page,
the changelog and other Markdown files, a page for each example, and the API reference, whose text is in the docstrings.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
MARKDOWN = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "examples/README.md": "examples/index.md",
    "benchmarks/README.md": "benchmarks/README.md",
    "benchmarks/RESULTS.md": "benchmarks/RESULTS.md",
}
"""Files of the repository, and their places in the site."""
BOOSTS = {
    "your_environment.md": 8,
    "installation.md": 8,
    "training.md": 8,
    "configuration.md": 3,
    "ppo.md": 3,
    "suites.md": 2,
    "env_to_module.md": 2,
}
"""How much more a page counts in searches than others. Examples, decisions, changes and benchmarks count less."""
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are not in docs/."""
    examples = sorted((ROOT / "examples").rglob("*.py")) + sorted((ROOT / "examples").rglob("*.ipynb"))
    pages = {place: (ROOT / source).read_text(encoding="utf-8") for source, place in MARKDOWN.items()}
    pages |= {f"{path.relative_to(ROOT).as_posix()}.md": _example_page(path) for path in examples}
    titles = {_title(path): f"{path.relative_to(ROOT / 'examples').as_posix()}.md" for path in examples}
    pages["examples/index.md"] += "\n" + _list("All files", titles, level=2)
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    pages["decisions/index.md"] = _list("Decisions", {_title(path): path.name for path in decisions})
    pages |= _api_pages()
    for place, content in pages.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **kwargs: Any) -> str:
    """Turns links between files of the repository into links between pages of the site."""
    places = {place: source for source, place in MARKDOWN.items()}
    uri = page.file.src_uri
    is_aside = uri.startswith(("examples/", "decisions/", "benchmarks/", "CHANGELOG", "CONTRIBUTING"))
    page.meta.setdefault("search", {"boost": BOOSTS.get(uri, 0.3 if is_aside else 1)})
    source = places.get(uri, uri if uri.startswith("examples/") else f"docs/{uri}")
    return _LINK.sub(lambda found: _linked(found, source, uri), markdown)


def _linked(found: re.Match[str], source: str, uri: str) -> str:
    """Returns a link with its target in the site, or only its text if the site does not have the target."""
    text, target = found.groups()
    path, hash_, anchor = target.partition("#")
    if not path or ":" in path:
        return found[0]
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if wanted in MARKDOWN:
        place = MARKDOWN[wanted]
    elif wanted.startswith("docs/") and (ROOT / wanted).is_file():
        place = wanted.removeprefix("docs/")
    elif wanted.startswith("examples") and (ROOT / wanted).exists():
        place = f"{wanted.rstrip('/')}.md" if (ROOT / wanted).is_file() else "examples/index.md"
    elif wanted == "docs/decisions":
        place = "decisions/index.md"
    elif source.startswith("docs/") and not (ROOT / wanted).exists():
        return found[0]  # a page that is made for the site, or a broken link, which mkdocs reports
    else:
        return text.strip("![]")
    return f"{text}({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{hash_}{anchor})"


# Pages ----------------------------------------------------------------------------------------------------------------


def _title(path: Path) -> str:
    """Returns the first line of a file's text."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or path.stem).splitlines()[0]
    if path.suffix == ".ipynb":
        text = "".join(json.loads(text)["cells"][0]["source"])
    return text.splitlines()[0].lstrip("# ")


def _list(title: str, pages: dict[str, str], *, level: int = 1) -> str:
    return "\n".join([f"{'#' * level} {title}", "", *(f"* [{name}]({place})" for name, place in pages.items()), ""])


def _example_page(path: Path) -> str:
    """Returns the code of an example as a page; of a notebook its texts, code and outputs of text."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return f"# {path.stem}\n\n`{name}`\n\n```python\n{text}```\n"
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join([parts[0], f"`{name}`", *parts[1:], ""])


def _api_pages() -> dict[str, str]:
    """Returns a page for each sub-package, with all names that ``marl_connectors`` exports from it."""
    stub = ast.parse((ROOT / "marl_connectors" / "__init__.pyi").read_text(encoding="utf-8"))
    by_package: dict[str, dict[str, str]] = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            package = (
                ".".join(node.module.split(".")[:2])
                if node.module.startswith("connectors.")
                else node.module.split(".")[0]
            )
            for alias in node.names:
                by_package.setdefault(package, {})[alias.name] = f"marl_connectors.{node.module}.{alias.name}"
    pages, lines = {}, ["# Python API", "", "All of these names can be imported from `marl_connectors`.", ""]
    for package, names in sorted(by_package.items()):
        title = f"marl_connectors.{package}"
        pages[f"api/{package}.md"] = "\n".join([f"# {title}", "", *(f"::: {path}\n" for path in names.values())])
        links = ", ".join(f"[{name}]({package}.md#{path})" for name, path in names.items())
        lines.append(f"* [`{title}`]({package}.md): {links}")
    return {**pages, "api/index.md": "\n".join([*lines, ""])}
