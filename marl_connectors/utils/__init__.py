"""RLlib's paths to small tools, for code that was written for them."""

from marl_connectors.utils.annotations import override as override
from marl_connectors.utils.framework import try_import_torch as try_import_torch
from marl_connectors.utils.numpy import one_hot as one_hot
from marl_connectors.utils.numpy import softmax as softmax
