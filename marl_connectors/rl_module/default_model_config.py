"""Settings of the default modules, which are built unless the user's config names a module class."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.validators import (
    ChecksFields,
    Option,
    Switch,
    Unfit,
    Validator,
    dict_of,
    either,
    function,
    integer,
    list_of,
    number,
    one_of,
    optional,
    shown,
    text,
)

if TYPE_CHECKING:
    from typing_extensions import Self


def _initializer_name(name: Any) -> str:
    from marl_connectors.rl_module.layers import INITIALIZERS  # which needs torch

    found = text().keep(name)
    if found.removesuffix("_") + "_" not in INITIALIZERS:
        raise Unfit(did_you_mean(found, INITIALIZERS))
    return found


def _conv_filter(spec: Any) -> list[Any]:
    if not isinstance(spec, (list, tuple)) or len(spec) != 3:
        raise Unfit
    channels, *sizes = spec
    return [_SIZE.keep(channels), *map(_SIZE_OR_PAIR.keep, sizes)]


def _pair(sizes: Any) -> tuple[int, int]:
    if not isinstance(sizes, (list, tuple)) or len(sizes) != 2:
        raise Unfit
    return _SIZE.keep(sizes[0]), _SIZE.keep(sizes[1])


_SIZE = integer(min=1)
SIZES = list_of(_SIZE, "a list of whole numbers from 1, such as [64, 64]")
_PAIR = {"type": "array", "items": _SIZE.schema, "minItems": 2, "maxItems": 2}
_SIZE_OR_PAIR = either(_SIZE, Validator("a pair of them", _pair, _PAIR))
_FILTER = {"type": "array", "items": _SIZE_OR_PAIR.schema, "minItems": 3, "maxItems": 3}
CONV_FILTERS = list_of(
    Validator("a filter", _conv_filter, _FILTER),
    "a list of [channels, kernel, stride], such as [[16, 4, 2], [32, 3, 1]]",
)

Size = Annotated[int, _SIZE]
Sizes = Annotated[Sequence[int], SIZES]
Activation = Annotated[str, one_of("tanh", "relu", "silu", "swish", "elu", "gelu", "linear")]
Initializer = Annotated[
    str | Callable[..., Any] | None,
    optional(
        either(
            Validator("a name in torch.nn.init", _initializer_name, text().schema), function("a function of a tensor")
        )
    ),
]
InitializerKwargs = Annotated[Mapping[str, Any] | None, optional(dict_of(text()))]


@dataclasses.dataclass
class DefaultModelConfig(ChecksFields):
    """The settings of the default modules. A plain dict with the same keys works too.

    An initializer is the name of a function in ``torch.nn.init`` (``"xavier_uniform_"``), or a function that fills a
    tensor in place; None for orthogonal weights and biases of 0. Its ``..._kwargs`` are passed to it.

    Attributes:
        fcnet_hiddens: Sizes of the hidden layers between the observation and the heads.
        fcnet_activation: After each of them: ``tanh``, ``relu``, ``silu`` (``swish``), ``elu``, ``gelu`` or ``linear``.
        fcnet_kernel_initializer: Of their weights.
        fcnet_kernel_initializer_kwargs: For it.
        fcnet_bias_initializer: Of their biases.
        fcnet_bias_initializer_kwargs: For it.
        fcnet_use_layernorm: Whether to normalise each one's outputs before the activation.
        conv_filters: For images: ``[channels, kernel, stride]`` of each convolution. None for such as suit the image's
            size, ``[]`` for none: images are flattened.
        conv_activation: After each of them.
        conv_kernel_initializer: Of their weights.
        conv_kernel_initializer_kwargs: For it.
        conv_bias_initializer: Of their biases.
        conv_bias_initializer_kwargs: For it.
        head_fcnet_hiddens: Sizes of further hidden layers in each head.
        head_fcnet_activation: After each of those.
        head_fcnet_kernel_initializer: Of the heads' weights; None for orthogonal ones, the last layer's with a gain of
            0.01 for the policy and 1 for the values.
        head_fcnet_kernel_initializer_kwargs: For it.
        head_fcnet_bias_initializer: Of the heads' biases.
        head_fcnet_bias_initializer_kwargs: For it.
        head_fcnet_use_layernorm: Whether to normalise the outputs of the heads' hidden layers before the activation.
        vf_share_layers: Whether the value head reads the policy's hidden layers, or has its own.
        action_distribution: For Box actions: ``gaussian``, ``squashed_gaussian`` or ``beta``; the last two need bounds.
        free_log_std: For normally distributed actions: whether the log standard deviations are parameters of their own
            instead of outputs that depend on the observation.
        log_std_clip_param: For normally distributed actions: log standard deviations are kept in ``[-x, x]``.
        use_lstm: Whether an LSTM stands between the hidden layers and the heads.
        lstm_cell_size: Its size.
        lstm_kernel_initializer: Of its weights, gate by gate; None for orthogonal ones.
        lstm_kernel_initializer_kwargs: For it.
        lstm_bias_initializer: Of its biases.
        lstm_bias_initializer_kwargs: For it.
        use_gru: Whether a GRU stands there instead.
        gru_cell_size: Its size.
        gru_kernel_initializer: Of its weights, gate by gate; None for orthogonal ones.
        gru_kernel_initializer_kwargs: For it.
        gru_bias_initializer: Of its biases.
        gru_bias_initializer_kwargs: For it.
        max_seq_len: For stateful modules: how many steps a training sequence has at most.
    """

    fcnet_hiddens: Annotated[Sizes, Option("--hidden N,N", "policies", "widths of the hidden layers")] = (256, 256)
    fcnet_activation: Annotated[
        Activation, Option("--activation NAME", "policies", "activation after each hidden layer")
    ] = "tanh"
    fcnet_kernel_initializer: Initializer = None
    fcnet_kernel_initializer_kwargs: InitializerKwargs = None
    fcnet_bias_initializer: Initializer = None
    fcnet_bias_initializer_kwargs: InitializerKwargs = None
    fcnet_use_layernorm: Switch = False
    conv_filters: Annotated[Sequence[Any] | None, optional(CONV_FILTERS)] = None
    conv_activation: Activation = "relu"
    conv_kernel_initializer: Initializer = None
    conv_kernel_initializer_kwargs: InitializerKwargs = None
    conv_bias_initializer: Initializer = None
    conv_bias_initializer_kwargs: InitializerKwargs = None
    head_fcnet_hiddens: Sizes = ()
    head_fcnet_activation: Activation = "relu"
    head_fcnet_kernel_initializer: Initializer = None
    head_fcnet_kernel_initializer_kwargs: InitializerKwargs = None
    head_fcnet_bias_initializer: Initializer = None
    head_fcnet_bias_initializer_kwargs: InitializerKwargs = None
    head_fcnet_use_layernorm: Switch = False
    vf_share_layers: Annotated[
        Switch, Option("--share-value-layers", "policies", "one body for policy and value function")
    ] = False
    action_distribution: Annotated[str, one_of("gaussian", "squashed_gaussian", "beta")] = "gaussian"
    free_log_std: Switch = False
    log_std_clip_param: Annotated[float, number(min=0, max=math.inf)] = 20.0
    use_lstm: Switch = False
    lstm_cell_size: Size = 256
    lstm_kernel_initializer: Initializer = None
    lstm_kernel_initializer_kwargs: InitializerKwargs = None
    lstm_bias_initializer: Initializer = None
    lstm_bias_initializer_kwargs: InitializerKwargs = None
    use_gru: Switch = False
    gru_cell_size: Size = 256
    gru_kernel_initializer: Initializer = None
    gru_kernel_initializer_kwargs: InitializerKwargs = None
    gru_bias_initializer: Initializer = None
    gru_bias_initializer_kwargs: InitializerKwargs = None
    max_seq_len: Size = 20

    def __post_init__(self) -> None:
        if self.use_lstm and self.use_gru:
            raise ConfigError("model_config: use_lstm and use_gru are both True. Set one of them.")

    @classmethod
    def _who(cls) -> str:
        return "model_config"

    @classmethod
    def of(cls, model_config: DefaultModelConfig | Mapping[str, Any] | None) -> Self:
        """The settings in a model config of any accepted kind.

        Raises:
            ConfigError: For an unknown key, a bad value, or another kind of object.
        """
        if isinstance(model_config, cls):
            return model_config
        if isinstance(model_config, DefaultModelConfig):  # of a class with fewer settings
            model_config = dataclasses.asdict(model_config)
        if model_config is not None and not isinstance(model_config, Mapping):
            raise ConfigError(
                f"model_config: the default modules expect a DefaultModelConfig or a dict, got {shown(model_config)}."
            )
        given = dict(model_config or {})
        known = [field.name for field in dataclasses.fields(cls)]
        for key in given:
            if key not in known:
                raise ConfigError(
                    f"model_config: the default modules have no setting {key!r}. {did_you_mean(key, known)}"
                )
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as JSON data, except for initializers that are functions."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}
