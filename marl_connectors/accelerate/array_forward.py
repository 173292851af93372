"""Forward passes for acting, bound to a number of rows: array operations on copies of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from marl_connectors.accelerate.array_layers import (
    BLOCK,
    BOUND_ACTIVATIONS,
    NUMPY_ROWS,
    UNSAID,
    Activation,
    is_recorded,
    parameters_as_built,
    row_tile,
)
from marl_connectors.accelerate.encoder_forward import EncoderForward
from marl_connectors.accelerate.numpy_threads import follow_torch
from marl_connectors.accelerate.unchanged import NEVER_CALLED, class_that_says, is_unchanged
from marl_connectors.rl_module.encoders import CNN, Conv2d, Encoder, FlatPart, ImagePart, OneHotPart
from marl_connectors.rl_module.layers import ACTIVATIONS, GRU, LSTM, MLP, LayerNorm, Linear, RecurrentLayer
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.typing import ModuleID, Tree

_PARTS = (FlatPart, OneHotPart, ImagePart, CNN, Conv2d)
_KNOWN = {MLP, Encoder, *_PARTS, Linear, LayerNorm, LSTM, GRU, nn.ModuleList, *ACTIVATIONS.values()}
"""The layers whose forward passes can be bound. A user may have replaced a layer by another one."""
_UNRELATED = frozenset(
    {
        *NEVER_CALLED,
        "compute_values",
        "_forward_train",
        "training_layers",
        "make_target_networks",
        "get_target_network_pairs",
    }
)
"""Methods that a forward pass for acting does not call, or that a bound forward pass calls, too."""
_WIDTH = 16
"""Weights are padded to a multiple of this number of outputs: matrix products compute narrower ones differently."""
_FEW = 8
"""The largest number of modules of different architectures that are bound one after another."""
_SPARE_ROWS = 1024
"""The number of rows of padding that costs about as much as running a module alone."""

Finish = Callable[[np.ndarray], np.ndarray]
Chain = Sequence[MLP | RecurrentLayer]


class ActingLayers(NamedTuple):
    """The layers that a module computes when acting; see ``RLModule.acting_layers``.

    Attributes:
        chain: The layers from ``obs`` to the outputs of the policy head.
        state_chains: The chains of layers that compute the other entries of the state, by name.
        state_key: The entry of the state that ``chain`` computes; None if it computes the whole state.
        kind: A key that is equal for modules whose layers have the same shapes and activations.
    """

    chain: Chain
    state_chains: Mapping[str, Chain]
    state_key: str | None
    kind: Any


class _RowLayout(NamedTuple):
    """The positions of the rows of ``M`` modules among ``[M, P]`` padded rows.

    Attributes:
        lead: ``(P,)`` for a single module, else ``(M, P)``.
        rows: The number of rows of each module; None if the modules have different numbers.
        index: ``[B]`` the module of each row, and its position among the module's rows; None unless the numbers differ.
        num_rows: ``B``.
    """

    lead: tuple[int, ...]
    rows: int | None
    index: tuple[np.ndarray, np.ndarray] | None
    num_rows: int

    @classmethod
    def of(cls, counts: Sequence[int]) -> _RowLayout:
        """Returns the layout for modules with these numbers of rows."""
        tile = row_tile().rows
        longest = -(-max(counts) // tile) * tile
        total = sum(counts)
        if len(counts) == 1:
            return cls((longest,), total, None, total)
        if len(set(counts)) == 1:
            return cls((len(counts), longest), counts[0], None, total)
        within = np.concatenate([np.arange(count) for count in counts])
        return cls((len(counts), longest), None, (np.repeat(np.arange(len(counts)), counts), within), total)

    def put(self, buffer: np.ndarray, values: np.ndarray) -> None:
        """Writes ``[B, n]`` to ``[*lead, n]``."""
        if self.index is not None:
            buffer[self.index] = values
        elif len(self.lead) == 1:
            buffer[: self.num_rows] = values
        else:
            buffer[:, : self.rows] = values.reshape(self.lead[0], -1, values.shape[-1])

    def take(self, padded: np.ndarray, width: int) -> np.ndarray:
        """Returns the ``[B, width]`` values among ``[*lead, n]`` padded ones."""
        if self.index is not None:
            return padded[self.index][:, :width]
        if len(self.lead) == 1:
            return padded[: self.num_rows, :width]
        return padded[:, : self.rows, :width].reshape(self.num_rows, width)


class _Dense:
    """Linear layers with activations, one after another, of one module or stacked."""

    def __init__(self, stacks: Sequence[Sequence[MLP]], lead: tuple[int, ...], in_width: int, fresh: bool):
        """Binds the layers.

        Args:
            stacks: One MLP after another, each of all modules.
            lead: ``(P,)`` or ``(M, P)`` rows.
            in_width: The width of the inputs, with padding.
            fresh: Whether each call returns a new array, instead of one that the next call overwrites.
        """
        follow_torch()
        self._sources: list[tuple[list[Linear], np.ndarray, np.ndarray]] = []
        self._steps: list[tuple[np.ndarray, np.ndarray, Activation | None, np.ndarray | None]] = []
        tile = row_tile()
        self._product = np.dot if len(lead) == 1 and not tile.is_alone else np.matmul
        self._lead, self._tiled = lead, tile.tiled((*lead, 0))[:-1] if tile.is_alone else lead
        width = in_width
        for own in stacks:
            for i, layer in enumerate(own[0].linear_layers):
                activation = _activation_after(own[0], i)
                self.width = layer.weight.shape[-2]
                shape = (width, _filled_up(layer.weight.shape[-2]))
                weight = np.zeros((*lead[:-1], *shape), np.float32)
                bias = np.zeros((*lead, shape[1]), np.float32)
                self._sources.append(([mlp.linear_layers[i] for mlp in own], weight, bias))
                added = bias.reshape(tile.tiled(bias.shape))
                self._steps.append((tile.weights(weight), added, activation, np.empty_like(added)))
                width = shape[1]
        if fresh:
            self._steps[-1] = (*self._steps[-1][:-1], None)

    def load(self) -> None:
        """Copies the current parameters."""
        for layers, weight, bias in self._sources:
            for i, layer in enumerate(layers):
                own, own_bias = (weight, bias) if len(layers) == 1 else (weight[i], bias[i])
                number, width = layer.weight.shape[-2], own.shape[-1]
                own[..., : layer.weight.shape[-1], :number] = layer.weight.detach().numpy().swapaxes(-1, -2)
                own_bias[..., :number] = layer.bias.detach().numpy()[..., None, :]
                if number < width:  # copies of real outputs, as 0 times infinity would be NaN
                    again = np.arange(width - number) % number
                    own[..., number:], own_bias[..., number:] = own[..., again], own_bias[..., again]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Returns ``[*lead, out]`` outputs, with padding, of ``[*lead, in]`` inputs."""
        product = self._product
        if self._tiled is not self._lead:
            x = x.reshape(*self._tiled, x.shape[-1])
        for weight, bias, activation, out in self._steps:
            x = product(x, weight) if out is None else product(x, weight, out)
            x += bias
            if activation is not None:
                activation(x, x)
        return x if self._tiled is self._lead else x.reshape(*self._lead, x.shape[-1])


class _Cell:
    """One step of an LSTM or a GRU, of one module or stacked.

    The gates with a logistic function compute it as ``0.5 * tanh(0.5 * x) + 0.5``, as numpy's tanh is several times
    faster than its exp. These gates stand first, and the inner 0.5 is part of the weights.
    """

    def __init__(self, layers: Sequence[RecurrentLayer], lead: tuple[int, ...], in_width: int):
        """Binds the layers.

        Args:
            layers: The recurrent layers of all modules.
            lead: ``(P,)`` or ``(M, P)`` rows.
            in_width: The width of the inputs, with padding.
        """
        first = layers[0]
        self._layers = layers
        self._is_lstm = isinstance(first, LSTM)
        self._in_width = in_width
        self.size = first.size
        self.width = _filled_up(first.size)  # of the gates and states, each
        # An LSTM's gates in torch's order are input, forget, cell, output; a GRU's are reset, update, new. A GRU's new
        # gate has two columns here, one computed from the input and one from the state.
        self._order = [0, 1, 3, 2] if self._is_lstm else [0, 1, 2]
        self._num_open = 3 if self._is_lstm else 2
        self._weight = np.zeros((4, *lead[:-1], in_width + self.width, self.width), np.float32)  # gate by gate
        self._bias = np.zeros((4, *lead, self.width), np.float32)
        self._both = np.zeros((*lead, in_width + self.width), np.float32)
        self._gates = np.empty_like(self._bias)
        tile = row_tile()
        self._product = (  # the rows, the weights and the place for the results
            self._both.reshape(tile.tiled(self._both.shape)),
            tile.weights(self._weight),
            self._gates.reshape(tile.tiled(self._gates.shape)),
        )
        self._c = np.zeros((*lead, self.width), np.float32)

    def load(self) -> None:
        """Copies the current parameters."""
        for i, layer in enumerate(self._layers):
            of_input, of_memory = self._by_gate(layer.weight_ih_l0), self._by_gate(layer.weight_hh_l0)
            added, memory_added = (self._by_gate(b.unsqueeze(-1)) for b in (layer.bias_ih_l0, layer.bias_hh_l0))
            weight, bias = (part[..., : self.size] for part in (self._weight, self._bias))
            if len(self._layers) > 1:
                weight, bias = weight[:, i], bias[:, i]
            for place, gate in enumerate(self._order):
                factor = np.float32(0.5 if place < self._num_open else 1.0)
                own = 3 if not self._is_lstm and gate == 2 else place
                weight[place, ..., : of_input.shape[-2], :] = factor * of_input[..., gate, :, :]
                memory = slice(self._in_width, self._in_width + self.size)
                weight[own, ..., memory, :] = factor * of_memory[..., gate, :, :]
                if own == place:
                    bias[place] = factor * (added[..., gate, :, :] + memory_added[..., gate, :, :])
                else:
                    bias[place], bias[own] = added[..., gate, :, :], memory_added[..., gate, :, :]

    def _by_gate(self, source: torch.Tensor) -> np.ndarray:
        """Returns ``[..., gates * size, in]`` weights as ``[..., gates, in, size]``."""
        values = source.detach().numpy()
        return values.reshape(*values.shape[:-2], -1, self.size, values.shape[-1]).swapaxes(-1, -2)

    def __call__(self, x: np.ndarray, layout: _RowLayout, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the next state, ``[*lead, width]`` each, of which ``h`` is the output."""
        both, at = self._both, self._in_width
        both[..., :at] = x
        layout.put(both[..., at : at + self.size], state["h"])
        np.matmul(*self._product)
        gates = self._gates
        gates += self._bias
        half = np.float32(0.5)
        if self._is_lstm:
            np.tanh(gates, gates)
            opened = gates[:3]
            opened *= half
            opened += half
            layout.put(self._c[..., : self.size], state["c"])
            c = opened[1] * self._c
            new = gates[3]
            new *= opened[0]
            c += new
            h = np.tanh(c)
            h *= opened[2]
            return {"h": h, "c": c}
        opened = gates[:2]
        np.tanh(opened, opened)
        opened *= half
        opened += half
        new = opened[0] * gates[3]
        new += gates[2]
        np.tanh(new, new)
        h = both[..., at:] - new
        h *= opened[1]
        h += new
        return {"h": h}


class _Network:
    """A chain of layers with at most one recurrent one.

    Attributes:
        before: The layers before the recurrent one, or all of them; None if there are none.
        width: The number of outputs, without padding; None if there are no layers.
    """

    def __init__(self, chains: Sequence[Chain], lead: tuple[int, ...], in_width: int):
        """Binds the chains of all modules for rows of ``in_width`` numbers."""
        at = next((i for i, layer in enumerate(chains[0]) if isinstance(layer, RecurrentLayer)), None)
        columns: list[list[Any]] = [list(layers) for layers in zip(*chains, strict=True)]
        before, after = (columns, []) if at is None else (columns[:at], columns[at + 1 :])
        self.before = self._cell = self._after = None
        width = in_width
        if _has_layers(before):
            self.before = _Dense(before, lead, width, fresh=at is None)
            width = _filled_up(self.before.width)
        if at is not None:
            self._cell = _Cell(columns[at], lead, width)
            width = self._cell.width
        if _has_layers(after):
            self._after = _Dense(after, lead, width, fresh=True)
        last = self._after or self._cell or self.before
        self.width = last.size if isinstance(last, _Cell) else last.width if last is not None else None

    def load(self) -> None:
        """Copies the current parameters."""
        for part in (self.before, self._cell, self._after):
            if part is not None:
                part.load()

    def __call__(self, x: np.ndarray, layout: _RowLayout, state: Any) -> tuple[np.ndarray, Any]:
        """Returns the outputs, with padding, and the next state, ``[B, size]`` each."""
        if self.before is not None:
            x = self.before(x)
        cell = self._cell
        if cell is None:
            return x, None
        after = cell(x, layout, state)
        x = after["h"]
        if self._after is not None:
            x = self._after(x)
        return x, {name: layout.take(leaf, cell.size) for name, leaf in after.items()}


def _has_layers(columns: Sequence[Sequence[MLP]]) -> bool:
    return any(own[0].linear_layers for own in columns)


class ArrayForward:
    """Computes the ``action_dist_inputs`` of the modules of a group without calling torch or the modules.

    A network of 2x64 computes 64 rows in 11 us. Calling torch and the modules, and making the dicts between them, takes
    twice as long, and always leads to the same matrix products.

    The weights are copies, which ``load`` makes, and which a call makes anew if a parameter was changed in place. The
    outputs for a row depend only on the row, to the last bit: rows are padded to whole tiles of the matrix product
    (``row_tile``), and outputs to a width that all products compute in the same way.

    Attributes:
        in_width: The number of values of an observation.
        num_inputs: The number of ``action_dist_inputs`` of each row.
        is_stateful: Whether the modules have a state.
    """

    def __init__(
        self,
        modules: Sequence[RLModule],
        layers: Sequence[ActingLayers],
        counts: Sequence[int],
        stacked: ActingLayers | None = None,
    ):
        """Binds the layers of modules.

        Args:
            modules: Modules of one kind.
            layers: The layers of each of them.
            counts: The number of rows of each of them.
            stacked: The same layers with the parameters of all modules stacked, if the modules have a stacked module.
        """
        first = layers[0]
        sources = layers if stacked is None else [stacked]
        self._layout = layout = _RowLayout.of(counts)
        self._state_key = first.state_key
        self._modules, self._counts = modules, counts
        self._finish: Finish | None = None
        space = modules[0].observation_space
        assert space is not None and space.shape is not None
        self.in_width = space.shape[0]
        self._network = _Network([own.chain for own in sources], layout.lead, self.in_width)
        self._state_networks = {
            name: _Network([own.state_chains[name] for own in sources], layout.lead, self.in_width)
            for name in first.state_chains
        }
        self._shapes = ((layout.num_rows, self.in_width), (layout.num_rows, 1, self.in_width))
        self._room = np.zeros((*layout.lead, self.in_width), np.float32)
        chains = [chain for own in layers for chain in (own.chain, *own.state_chains.values())]
        used = [p for chain in chains for layer in chain for p in _used(layer)]
        used += [p for module in modules for p in module._parameters.values() if p is not None]
        self._parameters = list(dict.fromkeys(used))
        self._versions: list[int] = []
        self._is_exact = layout.lead == (layout.num_rows,)
        self._width = self._network.width or self.in_width
        self.load()
        self.is_stateful = any(isinstance(layer, RecurrentLayer) for layer in first.chain)
        outputs = np.zeros((layout.num_rows, self._width), np.float32)
        self.num_inputs = (outputs if self._finish is None else self._finish(outputs)).shape[-1]

    def load(self) -> None:
        """Copies the current parameters."""
        self._versions = [parameter._version for parameter in self._parameters]
        with np.errstate(**UNSAID):
            for network in (self._network, *self._state_networks.values()):
                network.load()
        self._finish = self._modules[0].acting_outputs(self._modules, self._counts)

    def accepts(self, observations: Any) -> bool:
        """Whether observations have the type and shape that the modules were built for."""
        return (
            type(observations) is np.ndarray and observations.dtype.char in "fd" and observations.shape in self._shapes
        )

    def __call__(self, observations: np.ndarray, state: Any = None) -> tuple[np.ndarray, Any]:
        """Returns ``[B, n]`` float32 ``action_dist_inputs``, and the next state or None.

        Args:
            observations: ``[B, k]``, or with a time axis of length 1.
            state: The state of stateful modules before this step, ``[B, size]`` each.
        """
        layout, room = self._layout, self._room
        if [parameter._version for parameter in self._parameters] != self._versions:
            self.load()
        if observations.ndim == 3:
            observations = observations[:, 0]
        if self._is_exact and observations.dtype.char == "f":
            x = observations
        else:
            layout.put(room, observations)
            x = room
        x, after = self._run(x, state)
        inputs = x[:, : self._width] if self._is_exact else layout.take(x, self._width)
        return (inputs if self._finish is None else self._finish(inputs)), after

    @np.errstate(**UNSAID)
    def _run(self, x: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        """Returns the outputs, with padding, and the next state or None."""
        if state is None:
            before = self._network.before
            return x if before is None else before(x), None
        key = self._state_key
        outputs, after = self._network(x, self._layout, state if key is None else state[key])
        if key is not None:
            after = {key: after}
            for name, network in self._state_networks.items():
                after[name] = network(x, self._layout, state[name])[1]
        return outputs, after


class SeparateForwards:
    """Several ArrayForwards, each for some of the rows, which run one after another."""

    def __init__(self, parts: Sequence[tuple[slice, ArrayForward]]):
        """Combines forward passes, each with the rows that it computes."""
        self._parts = parts
        first = parts[0][1]
        self.in_width, self.num_inputs, self.is_stateful = first.in_width, first.num_inputs, first.is_stateful
        self._rows = parts[-1][0].stop

    def load(self) -> None:
        """Copies the current parameters."""
        for forward in {id(forward): forward for _, forward in self._parts}.values():
            forward.load()

    def accepts(self, observations: Any) -> bool:
        """Whether observations have the type and shape that the modules were built for."""
        return (
            type(observations) is np.ndarray
            and len(observations) == self._rows
            and all(forward.accepts(observations[rows]) for rows, forward in self._parts)
        )

    def __call__(self, observations: np.ndarray, state: Any = None) -> tuple[np.ndarray, Any]:
        """Returns ``action_dist_inputs`` and the next state, as ArrayForward does."""
        found = [forward(observations[rows], _sliced(state, rows)) for rows, forward in self._parts]
        inputs = np.concatenate([inputs for inputs, _ in found])
        return inputs, None if state is None else _joined([after for _, after in found])


BoundForward = ArrayForward | SeparateForwards | EncoderForward


def _sliced(state: Any, rows: slice) -> Any:
    if isinstance(state, Mapping):
        return {name: _sliced(part, rows) for name, part in state.items()}
    return None if state is None else state[rows]


def _joined(states: Sequence[Tree]) -> Tree:
    first = states[0]
    if isinstance(first, Mapping):
        return {name: _joined([state[name] for state in states]) for name in first}  # type: ignore[index,call-overload]
    return np.concatenate(states)  # type: ignore[arg-type]


def can_be_bound(rl_module: MultiRLModule) -> bool:
    """Whether the modules are called as the library calls them, and no hook or trace watches torch.

    Gradients are off while agents act, so that nothing but a hook or a trace can watch.
    """
    return is_unchanged(rl_module, MultiRLModule, free=_UNRELATED) and not is_recorded()


def bind_forward(
    rl_module: MultiRLModule, module_ids: Sequence[ModuleID], splits: Sequence[int]
) -> BoundForward | None:
    """Returns the forward pass for acting on a group's rows; None if the modules compute more than known layers.

    It is valid until layers, hooks or parameters are replaced.

    Args:
        rl_module: The modules.
        module_ids: The modules that have rows, in order.
        splits: Module ``i`` has rows ``splits[i]:splits[i + 1]``.
    """
    if not can_be_bound(rl_module):
        return None
    modules, counts = [rl_module[m] for m in module_ids], [end - begin for begin, end in pairwise(splits)]
    if len(modules) == 1 and not _sees_vectors(modules[0]):
        return _bind_encoder(modules[0], counts[0])
    layers: list[Any] = [_acting_layers(module, count) for module, count in zip(modules, counts, strict=True)]
    if not layers or any(own is None for own in layers):
        return None
    if len({own.kind for own in layers}) == 1 and max(counts) * len(counts) <= min(splits[-1] + _SPARE_ROWS, BLOCK):
        bucket = rl_module.bucket_of(module_ids) if len(modules) > 1 else None
        is_whole = bucket is not None and bucket.module_ids == tuple(module_ids)
        stacked = _acting_layers(bucket.stacked_module, counts[0]) if bucket is not None and is_whole else None
        return ArrayForward(modules, layers, counts, stacked)
    if len(modules) > _FEW:
        return None
    parts: list[tuple[slice, ArrayForward]] = []
    for module, own, begin, count in zip(modules, layers, splits, counts, strict=False):
        sizes = [BLOCK] * (count // BLOCK) + ([count % BLOCK] if count % BLOCK else [])
        bound = {size: ArrayForward([module], [own], [size]) for size in set(sizes)}
        at = begin
        for size in sizes:
            parts.append((slice(at, at + size), bound[size]))
            at += size
    return SeparateForwards(parts) if len(parts) > 1 else parts[0][1]


def _sees_vectors(module: RLModule) -> bool:
    space = module.observation_space
    return isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype in (np.float32, np.float64)


def _chain_of(module: RLModule) -> Chain:
    """Returns ``acting_layers``; an empty sequence if the module calls them in another way."""
    says = class_that_says(module, "acting_layers")
    return module.acting_layers() if is_unchanged(module, says, free=_UNRELATED) else ()


def _bind_encoder(module: RLModule, rows: int) -> EncoderForward | None:
    """Returns the forward pass of a module with an encoder; None if the module computes more than known layers."""
    chain: Any = _chain_of(module)
    if module.is_stateful() or not EncoderForward.can_run(chain, rows):
        return None
    if not all(_is_as_built(layer) and _is_plain(list(layer.parameters())) for layer in chain):
        return None
    return EncoderForward(module, chain, rows)


def _acting_layers(module: RLModule, rows: int) -> ActingLayers | None:
    """Returns the module's acting layers; None if any of it is called in another way, or torch is faster."""
    if not _sees_vectors(module):
        return None
    chain = _chain_of(module)
    states = module.acting_states()
    state_chains = {name: own for name, own in states.items() if own}
    state_key = next((name for name, own in states.items() if not own), None)
    described = tuple(_described(own, rows) for own in (chain, *state_chains.values()))
    if not chain or None in described or bool(state_chains) != (state_key is not None):
        return None
    if module.is_stateful() != any(isinstance(layer, RecurrentLayer) for layer in chain):
        return None
    return ActingLayers(chain, state_chains, state_key, (type(module).acting_outputs, described, tuple(state_chains)))


def _described(chain: Chain, rows: int) -> tuple[Any, ...] | None:
    """Returns the kind of a chain; None if it cannot be bound for this number of rows."""
    found: list[Any] = []
    num_cells = 0
    for layer in chain:
        if not isinstance(layer, (MLP, LSTM, GRU)):
            return None
        if not _is_as_built(layer) or not _is_plain(_used(layer)):
            return None
        if isinstance(layer, MLP):
            if not can_bind_mlp(layer, rows):
                return None
            shapes = [tuple(own.weight.shape) for own in layer.linear_layers]
            found.append((type(layer.activation), layer.activate_last, *shapes))
        else:
            num_cells += 1
            found.append((type(layer), *layer.weight_ih_l0.shape))
    return tuple(found) if num_cells <= 1 else None


def can_bind_mlp(mlp: MLP, rows: int) -> bool:
    """Whether numpy should compute this number of rows without gradients on the CPU, instead of torch."""
    activation = mlp.activation
    if len(mlp.norms) or type(activation) not in BOUND_ACTIVATIONS or getattr(activation, "alpha", 1.0) != 1.0:
        return False
    parameters = parameters_as_built(mlp)
    return rows <= NUMPY_ROWS.get(type(activation), rows) and parameters is not None and None not in parameters


def _activation_after(mlp: MLP, layer: int) -> Activation | None:
    """Returns the array function after a linear layer; None for none."""
    is_active = mlp.activate_last or layer + 1 < len(mlp.linear_layers)
    return BOUND_ACTIVATIONS[type(mlp.activation)] if is_active else None


def _is_as_built(layer: nn.Module) -> bool:
    """Whether a layer has no parts but those of the library, without hooks and without methods of their own."""
    return all(type(part) in _KNOWN and is_unchanged(part, type(part)) for part in layer.modules())


def _is_plain(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether parameters are float32 on the CPU."""
    return all(type(p) in (nn.Parameter, torch.Tensor) and p.is_cpu and p.dtype is torch.float32 for p in parameters)


def _used(layer: MLP | RecurrentLayer) -> list[nn.Parameter]:
    """Returns the parameters that a forward pass reads."""
    return list(layer.layers.parameters()) if isinstance(layer, MLP) else list(layer.parameters())


def _filled_up(width: int) -> int:
    return -(-width // _WIDTH) * _WIDTH
