"""What notebooks show of objects, as their ``_repr_html_`` returns it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def html_table(caption: str, rows: Mapping[str, str], *, code: bool = False) -> str:
    """Returns a table with two columns: names and values.

    Args:
        caption: The text above the table.
        rows: Values by name.
        code: Whether names and values are code.
    """
    begin, end = ("<code>", "</code>") if code else ("", "")
    style = "style='text-align:left'"

    def cell(text: str) -> str:
        return f"<td {style}>{begin}{escape(text)}{end}</td>"

    cells = "".join(f"<tr>{cell(name)}{cell(value)}</tr>" for name, value in rows.items())
    title = f"<caption {style}>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{cells}</table>"


def html_text(text: str) -> str:
    """Returns text that is aligned in columns of characters, and scrolls if it is wide."""
    return f"<pre style='overflow-x:auto'>{escape(text)}</pre>"
