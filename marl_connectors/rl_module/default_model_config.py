"""Settings of the modules that the library builds when the user brings none."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marl_connectors.errors import ConfigError, did_you_mean

Initializer = str | Callable[..., Any] | None


@dataclasses.dataclass
class DefaultModelConfig:
    """What the default modules look like. A plain dict with the same keys works too.

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

    fcnet_hiddens: Sequence[int] = (256, 256)
    fcnet_activation: str = "tanh"
    fcnet_kernel_initializer: Initializer = None
    fcnet_kernel_initializer_kwargs: Mapping[str, Any] | None = None
    fcnet_bias_initializer: Initializer = None
    fcnet_bias_initializer_kwargs: Mapping[str, Any] | None = None
    fcnet_use_layernorm: bool = False
    conv_filters: Sequence[Any] | None = None
    conv_activation: str = "relu"
    conv_kernel_initializer: Initializer = None
    conv_kernel_initializer_kwargs: Mapping[str, Any] | None = None
    conv_bias_initializer: Initializer = None
    conv_bias_initializer_kwargs: Mapping[str, Any] | None = None
    head_fcnet_hiddens: Sequence[int] = ()
    head_fcnet_activation: str = "relu"
    head_fcnet_kernel_initializer: Initializer = None
    head_fcnet_kernel_initializer_kwargs: Mapping[str, Any] | None = None
    head_fcnet_bias_initializer: Initializer = None
    head_fcnet_bias_initializer_kwargs: Mapping[str, Any] | None = None
    head_fcnet_use_layernorm: bool = False
    vf_share_layers: bool = True
    action_distribution: str = "gaussian"
    free_log_std: bool = False
    log_std_clip_param: float = 20.0
    use_lstm: bool = False
    lstm_cell_size: int = 256
    lstm_kernel_initializer: Initializer = None
    lstm_kernel_initializer_kwargs: Mapping[str, Any] | None = None
    lstm_bias_initializer: Initializer = None
    lstm_bias_initializer_kwargs: Mapping[str, Any] | None = None
    use_gru: bool = False
    gru_cell_size: int = 256
    gru_kernel_initializer: Initializer = None
    gru_kernel_initializer_kwargs: Mapping[str, Any] | None = None
    gru_bias_initializer: Initializer = None
    gru_bias_initializer_kwargs: Mapping[str, Any] | None = None
    max_seq_len: int = 20

    def __post_init__(self) -> None:
        if self.use_lstm and self.use_gru:
            raise ConfigError("model_config: use_lstm and use_gru are both True. Set one of them.")
        for name in (field.name for field in dataclasses.fields(self) if field.name.endswith("_hiddens")):
            self._check_sizes(name)
        for name in ("lstm_cell_size", "gru_cell_size", "max_seq_len"):
            if not _is_size(getattr(self, name)):
                raise ConfigError(f"model_config: {name} is {getattr(self, name)!r}. Give a whole number from 1.")
        bound = self.log_std_clip_param
        if not isinstance(bound, numbers.Real) or not bound >= 0:
            raise ConfigError(f"model_config: log_std_clip_param is {bound!r}. Give a number from 0.")

    def _check_sizes(self, name: str) -> None:
        sizes = getattr(self, name)
        if sizes is None and getattr(type(self), name) is None:  # then they are those of other layers
            return
        if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not all(map(_is_size, sizes)):
            raise ConfigError(
                f"model_config: {name} is {sizes!r}. Give a list of whole numbers from 1, one for each hidden layer."
            )

    @classmethod
    def of(cls, model_config: DefaultModelConfig | Mapping[str, Any] | None) -> DefaultModelConfig:
        """The settings in a model config of any accepted kind.

        Raises:
            ConfigError: For an unknown key.
        """
        if isinstance(model_config, DefaultModelConfig):
            return model_config
        given = dict(model_config or {})
        known = [field.name for field in dataclasses.fields(cls)]
        for key in given:
            if key not in known:
                raise ConfigError(
                    f"model_config: the default modules have no setting {key!r}. {did_you_mean(key, known)}"
                )
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data, but for initializers that are functions."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}


def _is_size(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) > 0
