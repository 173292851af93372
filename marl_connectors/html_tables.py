"""What notebooks show of explanations and of progress."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def html_table(caption: str, rows: Mapping[str, str]) -> str:
    """Returns a table with two columns: names and values.

    Args:
        caption: The text above the table.
        rows: Values by name.
    """
    style = "style='text-align:left'"

    def cell(text: str) -> str:
        return f"<td {style}>{escape(text)}</td>"

    cells = "".join(f"<tr>{cell(name)}{cell(value)}</tr>" for name, value in rows.items())
    title = f"<caption {style}>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{cells}</table>"


def html_text(text: str) -> str:
    """Returns text that is aligned in columns of characters, and scrolls if it is wide."""
    return f"<pre style='overflow-x:auto'>{escape(text)}</pre>"
