"""RLlib's function that imports torch."""

from __future__ import annotations

from typing import Any


def try_import_torch(error: bool = False) -> tuple[Any, Any]:
    """Returns ``torch`` and ``torch.nn``, which are always installed."""
    import torch

    return torch, torch.nn
