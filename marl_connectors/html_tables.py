"""Tables for notebooks, which show what ``_repr_html_`` of an object returns."""

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
    style = "text-align:left"

    def cell(text: str) -> str:
        return f"<td style='{style}'>{begin}{escape(text)}{end}</td>"

    cells = "".join(f"<tr>{cell(name)}{cell(value)}</tr>" for name, value in rows.items())
    title = f"<caption style='{style};white-space:nowrap'>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{cells}</table>"
