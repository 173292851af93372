"""Puts modules into train mode and back into eval mode, and finds out whether they have something to train."""

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


def is_trainable(module: nn.Module) -> bool:
    """Whether a module has parameters that are not frozen. It takes less time than to list ``module.parameters()``."""
    layers = [module]
    while layers:
        layer = layers.pop()
        for parameter in layer._parameters.values():
            if parameter is not None and parameter.requires_grad:
                return True
        layers += [child for child in layer._modules.values() if child is not None]
    return False


@cache
def _is_plain(kind: type[nn.Module]) -> bool:
    return kind.train is nn.Module.train and kind.eval is nn.Module.eval
