"""Writes the tables of configuration.md, which follow from the declarations of the settings.

Run it after a change of a setting: ``python docs/settings_tables.py``. A test says when it is needed.
"""

from __future__ import annotations

import re
from pathlib import Path

from marl_connectors import PPOConfig
from marl_connectors.algorithms.config.sections import sections

PAGE = Path(__file__).with_name("configuration.md")
_TABLE = re.compile(r"(<!-- settings: (\w+) -->\n)(?:\|.*\n)*")


def _link(page: re.Match[str]) -> str:
    return f"[{page[1].replace('_', ' ')}]({page[1]}.md)"


def written(text: str) -> str:
    """Returns the text of the page, with the table of a section of ``PPOConfig`` below each of its marks.

    A setting that several sections accept is in the table of the first one.
    """
    seen: set[str] = set()

    def table(found: re.Match[str]) -> str:
        own = {name: each for name, each in sections(PPOConfig)[found[2]].items() if each.name not in seen}
        seen.update(each.name for each in own.values())
        rows = ["| setting | default | may be | meaning |", "| --- | --- | --- | --- |"]
        for name, each in own.items():
            default = getattr(PPOConfig, each.name, each.default)
            shown = default.__name__ if isinstance(default, type) else repr(default)
            doc = re.sub(r"docs/(\w+)\.md", _link, each.doc.replace("``", "`"))
            rows.append(f"| `{name}` | `{shown}` | {each.validator.expected if each.validator else ''} | {doc} |")
        return "\n".join([found[1] + rows[0], *rows[1:], ""])

    return _TABLE.sub(table, text)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
