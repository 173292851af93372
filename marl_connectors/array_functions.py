"""Functions that numpy and torch call by different names, for what is computed with arrays and with tensors alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

_FEW = 64
"""Up to this number of categories, torch normalises several times faster along the first axis than along the last."""


def namespace(x: Any) -> Any:
    """Returns ``numpy`` for an array, and ``torch`` for a tensor."""
    return np if isinstance(x, np.ndarray) else torch


def log_softmax(logits: Any) -> Any:
    """Returns ``[..., n]`` normalised logits. In numpy, those of a row depend on that row alone, to the last bit."""
    if isinstance(logits, np.ndarray):
        axes = range(logits.ndim)
        by_category = np.array(logits.transpose(axes[-1], *axes[:-1]), order="C")  # np.moveaxis is several times slower
        by_category -= by_category.max(axis=0)
        by_category -= np.log(np.exp(by_category).sum(axis=0))
        return by_category.transpose(*axes[1:], 0)
    if logits.shape[-1] <= _FEW:
        return torch.log_softmax(logits.movedim(-1, 0).contiguous(), 0).movedim(0, -1)
    return torch.log_softmax(logits, -1)


def pick(values: Any, index: Any) -> Any:
    """Returns ``[...]``, one of the ``[..., n]`` values of each row."""
    if isinstance(values, np.ndarray):  # numpy's own functions take several times as long
        return pick(torch.from_numpy(values), torch.as_tensor(index)).numpy()
    return values.gather(-1, index.long().unsqueeze(-1)).squeeze(-1)


def mean(x: Any) -> Any:
    """Returns the means over the last axis."""
    return np.add.reduce(x, -1) * x.dtype.type(1.0 / x.shape[-1]) if isinstance(x, np.ndarray) else x.mean(-1)


def one_hot(index: Any, like: Any) -> Any:
    """Returns ``[..., n]`` as ``like``, 1 at the ``[...]`` index and 0 elsewhere."""
    if isinstance(like, np.ndarray):
        return np.eye(like.shape[-1], dtype=like.dtype)[index]
    return F.one_hot(index, like.shape[-1]).to(like.dtype)


def split(x: Any, sizes: Sequence[int]) -> list[Any]:
    """Returns the parts of the last axis that have these sizes."""
    if isinstance(x, np.ndarray):
        return [x[..., begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]
    return list(x.split(list(sizes), -1))


def whole(x: Any) -> Any:
    """Returns numbers or truth values as int64."""
    return x.astype(np.int64) if isinstance(x, np.ndarray) else x.long()


def log(x: Any) -> Any:
    """Returns logarithms, -inf of 0."""
    if isinstance(x, np.ndarray):
        with np.errstate(divide="ignore"):
            return np.log(x)
    return x.log()


def log_sigmoid(x: Any) -> Any:
    """Returns the logarithm of the logistic function."""
    return -softplus(-x) if isinstance(x, np.ndarray) else F.logsigmoid(x)


def softplus(x: Any) -> Any:
    """Returns ``log(1 + exp(x))``. Each result depends only on its own number, to the last bit."""
    xp = namespace(x)
    return x.clip(0.0) + xp.log1p(xp.exp(-abs(x)))
