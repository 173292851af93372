"""``python -m marl_connectors`` is the command ``marl-connectors``."""

from __future__ import annotations

import sys

from marl_connectors.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
