"""Puts modules into train mode and back into eval mode."""

from __future__ import annotations

from torch import nn


def set_train_mode(module: nn.Module, mode: bool) -> None:
    """Does what ``module.train()`` (or ``module.eval()`` if ``mode`` is False) does, in a fraction of the time.

    It calls these methods if any layer overrides one of them.
    """
    layers = [module]
    for layer in layers:  # which grows meanwhile
        own, kind = vars(layer), type(layer)
        is_plain = kind.train is nn.Module.train and kind.eval is nn.Module.eval and "training" in own
        if not is_plain or "train" in own or "eval" in own:
            _ = module.train() if mode else module.eval()
            return
        layers.extend(child for child in layer._modules.values() if child is not None)
    for layer in layers:
        vars(layer)["training"] = mode
