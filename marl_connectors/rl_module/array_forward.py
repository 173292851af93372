"""Forward passes for acting, bound to a number of rows: array operations on weights that lie as they are multiplied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from marl_connectors.rl_module.architecture import has_hooks, has_own_methods, overrides_methods_of
from marl_connectors.rl_module.array_layers import BLOCK, Activation, is_watched, row_tile
from marl_connectors.rl_module.encoders import Encoder, FlatPart
from marl_connectors.rl_module.layers import ACTIVATIONS, MLP, LayerNorm, Linear
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.recurrent_layers import GRU, LSTM, RecurrentLayer
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.typing import ModuleID, Tree

_KNOWN = {MLP, Encoder, FlatPart, Linear, LayerNorm, LSTM, GRU, nn.ModuleList, *ACTIVATIONS.values()}
"""Layers whose forward passes are known here; somebody may have put others in their place."""
_UNRELATED = {
    "__init__",
    "setup",
    "compute_values",
    "_forward_train",
    "training_layers",
    "get_initial_state",
    "get_inference_action_dist_cls",
    "get_exploration_action_dist_cls",
    "get_train_action_dist_cls",
    "get_non_inference_attributes",
    "make_target_networks",
    "get_target_network_pairs",
    "get_state",
    "set_state",
    "extra_repr",
    "__repr__",
}
"""Methods that a forward pass for acting does not go through, or that are called all the same."""
_WIDTH = 16
"""Weights are filled up to a multiple of so many outputs: matrix products treat narrower ones in other ways."""
_FEW = 8
"""Up to how many modules of unlike architectures are bound one after another."""
_SPARE_ROWS = 1024
"""So many rows of padding cost about as much as running a module by itself."""

Finish = Callable[[np.ndarray], np.ndarray]
Chain = Sequence[MLP | RecurrentLayer]


class ActingLayers(NamedTuple):
    """What a module computes when acting; see ``RLModule.acting_layers``.

    Attributes:
        chain: The layers from ``obs`` to the outputs of the policy head.
        beside: By the name of a part of the state, the chain of layers that carries it on.
        part: The name of the part of the state that ``chain`` carries on; None for all of it.
        kind: Equal for modules whose layers have like shapes and activations.
    """

    chain: Chain
    beside: Mapping[str, Chain]
    part: str | None
    kind: Any


class _Place(NamedTuple):
    """Where the rows of ``M`` modules stand among ``[M, P]`` rows with padding.

    Attributes:
        lead: ``(P,)`` for a module alone, else ``(M, P)``.
        rows: How many rows each module has; None if they differ.
        index: ``[B]`` the module, and the place among its rows, of each row where they differ.
        num_rows: ``B``.
    """

    lead: tuple[int, ...]
    rows: int | None
    index: tuple[np.ndarray, np.ndarray] | None
    num_rows: int

    @classmethod
    def of(cls, counts: Sequence[int]) -> _Place:
        """For modules with so many rows each."""
        longest = -(-max(counts) // row_tile()) * row_tile()
        total = sum(counts)
        if len(counts) == 1:
            return cls((longest,), total, None, total)
        if len(set(counts)) == 1:
            return cls((len(counts), longest), counts[0], None, total)
        within = np.concatenate([np.arange(count) for count in counts])
        return cls((len(counts), longest), None, (np.repeat(np.arange(len(counts)), counts), within), total)

    def put(self, buffer: np.ndarray, values: np.ndarray) -> None:
        """Writes ``[B, n]`` to ``[*lead, n]``. A hot path."""
        if self.index is not None:
            buffer[self.index] = values
        elif len(self.lead) == 1:
            buffer[: self.num_rows] = values
        else:
            buffer[:, : self.rows] = values.reshape(self.lead[0], -1, values.shape[-1])

    def take(self, padded: np.ndarray, width: int) -> np.ndarray:
        """``[B, width]`` of ``[*lead, n]``. A hot path."""
        if self.index is not None:
            return padded[self.index][:, :width]
        if len(self.lead) == 1:
            return padded[: self.num_rows, :width]
        return padded[:, : self.rows, :width].reshape(self.num_rows, width)


class _Dense:
    """Linear layers with activations, one after another, of one module or stacked."""

    def __init__(self, stacks: Sequence[Sequence[MLP]], lead: tuple[int, ...], in_width: int, fresh: bool):
        """Binds.

        Args:
            stacks: One MLP after another, each of all modules.
            lead: ``(P,)`` or ``(M, P)`` rows.
            in_width: How wide the inputs are, with padding.
            fresh: Whether each call gives an array of its own, instead of one that the next call writes to.
        """
        self._sources: list[tuple[list[Linear], np.ndarray, np.ndarray]] = []
        self._steps: list[tuple[np.ndarray, np.ndarray, Activation | None, np.ndarray | None]] = []
        self._product = np.dot if len(lead) == 1 else np.matmul
        width = in_width
        for own in stacks:
            for i, layer in enumerate(own[0]._linear_layers):
                activation = own[0].activation_after(i)
                self.width = layer.weight.shape[-2]
                shape = (width, _filled_up(layer.weight.shape[-2]))
                weight = np.zeros((*lead[:-1], *shape), np.float32)
                bias = np.zeros((*lead, shape[1]), np.float32)
                self._sources.append(([mlp._linear_layers[i] for mlp in own], weight, bias))
                self._steps.append((weight, bias, activation, np.empty(bias.shape, np.float32)))
                width = shape[1]
        if fresh:
            self._steps[-1] = (*self._steps[-1][:-1], None)

    def load(self) -> None:
        """Copies the parameters as they are now."""
        for layers, weight, bias in self._sources:
            for i, layer in enumerate(layers):
                own, own_bias = (weight, bias) if len(layers) == 1 else (weight[i], bias[i])
                number, width = layer.weight.shape[-2], own.shape[-1]
                own[..., : layer.weight.shape[-1], :number] = layer.weight.detach().numpy().swapaxes(-1, -2)
                own_bias[..., :number] = layer.bias.detach().numpy()[..., None, :]
                if number < width:  # real outputs again, as 0 times infinity would be NaN
                    again = np.arange(width - number) % number
                    own[..., number:], own_bias[..., number:] = own[..., again], own_bias[..., again]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """``[*lead, out]``, filled up, of ``[*lead, in]``. A hot path."""
        product = self._product
        for weight, bias, activation, out in self._steps:
            x = product(x, weight) if out is None else product(x, weight, out)
            x += bias
            if activation is not None:
                activation(x, x)
        return x


class _Cell:
    """One step of an LSTM or a GRU, of one module or stacked.

    What opens and closes goes through ``0.5 * tanh(0.5 * x) + 0.5``, which is the logistic function: numpy's tanh is
    several times faster than its exp. Those gates stand first, and the inner 0.5 is in the weights.
    """

    def __init__(self, layers: Sequence[RecurrentLayer], lead: tuple[int, ...], in_width: int):
        """Binds.

        Args:
            layers: Of all modules.
            lead: ``(P,)`` or ``(M, P)`` rows.
            in_width: How wide the inputs are, with padding.
        """
        first = layers[0]
        self._layers = layers
        self._is_lstm = isinstance(first, LSTM)
        self._in_width = in_width
        self.size = first.size
        self.width = _filled_up(first.size)  # of the gates and states, each
        # An LSTM's gates in torch's order are input, forget, cell, output; a GRU's are reset, update, new. A GRU's new
        # one has two columns here: what comes of the input, and what comes of the memory.
        self._order = [0, 1, 3, 2] if self._is_lstm else [0, 1, 2]
        self._num_open = 3 if self._is_lstm else 2
        self._weight = np.zeros((4, *lead[:-1], in_width + self.width, self.width), np.float32)  # gate by gate
        self._bias = np.zeros((4, *lead, self.width), np.float32)
        self._both = np.zeros((*lead, in_width + self.width), np.float32)
        self._gates = np.empty_like(self._bias)
        self._c = np.zeros((*lead, self.width), np.float32)

    def load(self) -> None:
        """Copies the parameters as they are now."""
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
        """``[..., gates, in, size]`` of ``[..., gates * size, in]`` weights."""
        values = source.detach().numpy()
        return values.reshape(*values.shape[:-2], -1, self.size, values.shape[-1]).swapaxes(-1, -2)

    def __call__(self, x: np.ndarray, place: _Place, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The next state, ``[*lead, width]`` each; ``h`` is what is put out. A hot path."""
        both, at = self._both, self._in_width
        both[..., :at] = x
        place.put(both[..., at : at + self.size], state["h"])
        gates = np.matmul(both, self._weight, out=self._gates)
        gates += self._bias
        half = np.float32(0.5)
        if self._is_lstm:
            np.tanh(gates, gates)
            opened = gates[:3]
            opened *= half
            opened += half
            place.put(self._c[..., : self.size], state["c"])
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
        width: How many numbers are put out, without padding; None if there are no layers.
    """

    def __init__(self, chains: Sequence[Chain], lead: tuple[int, ...], in_width: int):
        """Binds the chains of all modules for rows of so many numbers."""
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
        """Copies the parameters as they are now."""
        for part in (self.before, self._cell, self._after):
            if part is not None:
                part.load()

    def __call__(self, x: np.ndarray, place: _Place, state: Any) -> tuple[np.ndarray, Any]:
        """The outputs, with padding, and the next state, ``[B, size]`` each. A hot path."""
        if self.before is not None:
            x = self.before(x)
        cell = self._cell
        if cell is None:
            return x, None
        after = cell(x, place, state)
        x = after["h"]
        if self._after is not None:
            x = self._after(x)
        return x, {name: place.take(leaf, cell.size) for name, leaf in after.items()}


def _has_layers(columns: Sequence[Sequence[MLP]]) -> bool:
    return any(own[0]._linear_layers for own in columns)


class ArrayForward:
    """What the modules of a group put out when acting, without a call of torch or of a module.

    A network of 2x64 does 64 rows in 11 us. Twice as much again goes by until torch, the modules and the dicts between
    them have all been called, and what comes of it is always the same: which matrices are multiplied.

    The weights are copies, which ``load`` takes, and which each call renews if a parameter was changed in place. What
    comes of a row depends on nothing but the row, to the last bit: rows are filled up to whole tiles of the matrix
    product (``row_tile``), and outputs to a width that all products treat in the same way.

    Attributes:
        in_width: How many numbers an observation has.
        num_inputs: How many ``action_dist_inputs`` each row gets.
        is_stateful: Whether there is a state that goes on.
    """

    def __init__(
        self,
        modules: Sequence[RLModule],
        layers: Sequence[ActingLayers],
        counts: Sequence[int],
        twin: ActingLayers | None = None,
    ):
        """Binds.

        Args:
            modules: All of one kind.
            layers: What each of them computes.
            counts: How many rows each of them has.
            twin: The same layers with the parameters of all modules stacked, if there are such.
        """
        first = layers[0]
        sources = layers if twin is None else [twin]
        self._place = place = _Place.of(counts)
        self._part = first.part
        self._modules, self._counts = modules, counts
        self._finish: Finish | None = None
        space = modules[0].observation_space
        assert space is not None and space.shape is not None
        self.in_width = space.shape[0]
        self._network = _Network([own.chain for own in sources], place.lead, self.in_width)
        beside = {name: [own.beside[name] for own in sources] for name in first.beside}
        self._beside = {name: _Network(chains, place.lead, self.in_width) for name, chains in beside.items()}
        self._shapes = ((place.num_rows, self.in_width), (place.num_rows, 1, self.in_width))
        self._room = np.zeros((*place.lead, self.in_width), np.float32)
        chains = [chain for own in layers for chain in (own.chain, *own.beside.values())]
        used = [p for chain in chains for layer in chain for p in _used(layer)]
        used += [p for module in modules for p in module._parameters.values() if p is not None]
        self._parameters = list(dict.fromkeys(used))
        self._versions: list[int] = []
        self._is_exact = place.lead == (place.num_rows,)
        self._width = self._network.width or self.in_width
        self.load()
        self.is_stateful = any(isinstance(layer, RecurrentLayer) for layer in first.chain)
        outputs = np.zeros((place.num_rows, self._width), np.float32)
        self.num_inputs = (outputs if self._finish is None else self._finish(outputs)).shape[-1]

    def load(self) -> None:
        """Takes the parameters as they are now."""
        self._versions = [parameter._version for parameter in self._parameters]
        self._network.load()
        for network in self._beside.values():
            network.load()
        self._finish = self._modules[0].acting_outputs(self._modules, self._counts)

    def takes(self, observations: Any) -> bool:
        """Whether observations are such as the modules were built for. A hot path."""
        return (
            type(observations) is np.ndarray and observations.dtype.char in "fd" and observations.shape in self._shapes
        )

    def __call__(self, observations: np.ndarray, state: Any = None) -> tuple[np.ndarray, Any]:
        """``[B, n]`` float32 ``action_dist_inputs``, and the next state or None. A hot path.

        Args:
            observations: ``[B, k]``, or with a time axis of length 1.
            state: Before this step, of stateful modules: ``[B, size]`` each.
        """
        place, room = self._place, self._room
        if [parameter._version for parameter in self._parameters] != self._versions:
            self.load()
        if observations.ndim == 3:
            observations = observations[:, 0]
        if self._is_exact and observations.dtype.char == "f":
            x = observations
        else:
            place.put(room, observations)
            x = room
        if state is None:
            after, before = None, self._network.before
            x = x if before is None else before(x)
        else:
            x, after = self._stateful(x, state)
        inputs = x[:, : self._width] if self._is_exact else place.take(x, self._width)
        return (inputs if self._finish is None else self._finish(inputs)), after

    def _stateful(self, x: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        """The outputs, with padding, and the next state."""
        part = self._part
        outputs, after = self._network(x, self._place, state if part is None else state[part])
        if part is not None:
            after = {part: after}
            for name, network in self._beside.items():
                after[name] = network(x, self._place, state[name])[1]
        return outputs, after


class SeparateForwards:
    """The same for rows that are computed one part after another."""

    def __init__(self, parts: Sequence[tuple[slice, ArrayForward]]):
        """Takes the rows of each part, and its forward pass."""
        self._parts = parts
        first = parts[0][1]
        self.in_width, self.num_inputs, self.is_stateful = first.in_width, first.num_inputs, first.is_stateful
        self._rows = parts[-1][0].stop

    def load(self) -> None:
        """As ArrayForward."""
        for forward in {id(forward): forward for _, forward in self._parts}.values():
            forward.load()

    def takes(self, observations: Any) -> bool:
        """As ArrayForward."""
        return (
            type(observations) is np.ndarray
            and len(observations) == self._rows
            and all(forward.takes(observations[rows]) for rows, forward in self._parts)
        )

    def __call__(self, observations: np.ndarray, state: Any = None) -> tuple[np.ndarray, Any]:
        """As ArrayForward."""
        found = [forward(observations[rows], _sliced(state, rows)) for rows, forward in self._parts]
        inputs = np.concatenate([inputs for inputs, _ in found])
        return inputs, None if state is None else _joined([after for _, after in found])


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
    """Whether nobody has changed how modules are called, or watches what torch is called with."""
    if overrides_methods_of(rl_module, MultiRLModule, _UNRELATED) or has_hooks(rl_module):
        return False
    with torch.no_grad():  # as it is when acting
        return not is_watched()


def bind_forward(
    rl_module: MultiRLModule, module_ids: Sequence[ModuleID], splits: Sequence[int]
) -> ArrayForward | SeparateForwards | None:
    """The forward pass for acting on a group's rows; None if it takes more than is known here.

    It holds until somebody changes layers or hooks, or puts a parameter in the place of another one.

    Args:
        rl_module: The modules.
        module_ids: Those that have rows, in order.
        splits: Module ``i`` has rows ``splits[i]:splits[i + 1]``.
    """
    if not can_be_bound(rl_module):
        return None
    modules, counts = [rl_module[m] for m in module_ids], [end - begin for begin, end in pairwise(splits)]
    layers: list[Any] = [_acting_layers(module, count) for module, count in zip(modules, counts, strict=True)]
    if not layers or any(own is None for own in layers):
        return None
    if len({own.kind for own in layers}) == 1 and max(counts) * len(counts) <= min(splits[-1] + _SPARE_ROWS, BLOCK):
        bucket = rl_module.bucket_of(module_ids) if len(modules) > 1 else None
        is_whole = bucket is not None and bucket.module_ids == tuple(module_ids)
        twin = _acting_layers(bucket.twin, counts[0]) if bucket is not None and is_whole else None
        return ArrayForward(modules, layers, counts, twin)
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


def _acting_layers(module: RLModule, rows: int) -> ActingLayers | None:
    """What the module's class says, unless somebody has changed how any of it is called, or torch is faster."""
    space = module.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or space.dtype not in (np.float32, np.float64):
        return None
    says = next(cls for cls in type(module).__mro__ if "acting_layers" in vars(cls))
    if overrides_methods_of(module, says, _UNRELATED):
        return None
    chain = module.acting_layers()
    states = module.acting_states()
    beside = {name: own for name, own in states.items() if own}
    part = next((name for name, own in states.items() if not own), None)
    described = tuple(_described(own, rows) for own in (chain, *beside.values()))
    if not chain or None in described or bool(beside) != (part is not None):
        return None
    if module.is_stateful() != any(isinstance(layer, RecurrentLayer) for layer in chain):
        return None
    return ActingLayers(chain, beside, part, (type(module).acting_outputs, described, tuple(beside)))


def _described(chain: Chain, rows: int) -> tuple[Any, ...] | None:
    """The kind of a chain; None if it cannot be bound for so many rows."""
    found: list[Any] = []
    num_cells = 0
    for layer in chain:
        if not isinstance(layer, (MLP, LSTM, GRU)):
            return None
        for part in layer.modules():
            if type(part) not in _KNOWN or has_own_methods(part) or has_hooks(part):
                return None
        if not all(
            type(p) in (nn.Parameter, torch.Tensor) and p.is_cpu and p.dtype is torch.float32 for p in _used(layer)
        ):
            return None
        if isinstance(layer, MLP):
            if not layer.can_be_bound(rows):
                return None
            shapes = [tuple(own.weight.shape) for own in layer._linear_layers]
            found.append((type(layer.activation), layer.activate_last, *shapes))
        else:
            num_cells += 1
            found.append((type(layer), *layer.weight_ih_l0.shape))
    return tuple(found) if num_cells <= 1 else None


def _used(layer: MLP | RecurrentLayer) -> list[nn.Parameter]:
    """The parameters that are read."""
    return list(layer.layers.parameters()) if isinstance(layer, MLP) else list(layer.parameters())


def _filled_up(width: int) -> int:
    return -(-width // _WIDTH) * _WIDTH
