"""Puts modules into train mode and back into eval mode."""

from __future__ import annotations

from functools import cache

from torch import nn


def set_train_mode(module: nn.Module, mode: bool) -> None:
    """Does what ``module.train()`` (or ``module.eval()`` if ``mode`` is False) does, in a fraction of the time.

    It calls these methods if any layer overrides one of them.
    """
    layers = [module]
    for layer in layers:  # which grows meanwhile
        own = layer.__dict__
        if not _is_plain(type(layer)) or "training" not in own or "train" in own or "eval" in own:
            _ = module.train() if mode else module.eval()
            return
        for child in own["_modules"].values():
            if child is not None:
                layers.append(child)
    for layer in layers:
        layer.__dict__["training"] = mode


@cache
def _is_plain(kind: type[nn.Module]) -> bool:
    return kind.train is nn.Module.train and kind.eval is nn.Module.eval
