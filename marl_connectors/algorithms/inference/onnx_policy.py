"""OnnxPolicy: acts with exported modules. It needs numpy and onnxruntime only, neither torch nor marl_connectors.

``Policy.export_onnx`` copies this file into the folder that it writes, so that the folder is all that a robot needs::

    from onnx_policy import OnnxPolicy

    policy = OnnxPolicy("folder")
    policy.reset()
    action = policy(observation, "agent_0")
"""

# pyright: reportMissingParameterType=false

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

FORMAT, FORMAT_VERSION = "marl-connectors-onnx", 2


class OnnxPolicy:
    """Acts as ``marl_connectors.Policy`` does, with its arguments and results.

    It remembers what the programs need of the steps so far: call ``reset`` when an episode begins. An observation may
    be a single one, or a batch ``[B, ...]`` of the observations of B environments. A call that raises an error changes
    nothing that is remembered, so it can be made again.

    Attributes:
        contract: The content of ``contract.json``.
        agent_ids: The agents whose observations the policy accepts.
    """

    def __init__(self, folder, *, seed=0, num_threads=1):
        """Loads an exported policy.

        Args:
            folder: The folder that ``Policy.export_onnx`` has written.
            seed: The seed of sampled actions.
            num_threads: The number of threads with which onnxruntime computes a program.

        Raises:
            ValueError: If the folder holds no export of a known version, or one of its files is missing or was changed.
        """
        import onnxruntime  # pyright: ignore[reportMissingImports]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
        options.log_severity_level = 3

        def open_file(about):
            path = Path(folder) / about["file"]
            content = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(content).hexdigest() != about["sha256"]:
                raise ValueError(f"OnnxPolicy: {path} is missing or was changed. Export the policy again.")
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            return lambda feed: session.run(None, feed)

        contract = read_contract(folder)
        self._set_up(contract, [_Program(about, open_file(about)) for about in contract["files"]], seed)

    def session(self, *, seed=0):
        """Returns a new policy with the same programs and an empty memory. Sessions may act in threads of their own.

        Args:
            seed: The seed of its sampled actions.
        """
        made = object.__new__(type(self))
        made._set_up(self.contract, self._programs, seed)
        return made

    def _set_up(self, contract, programs, seed):
        self.contract = contract
        self._programs = programs
        by_file = {program.about["file"]: program for program in programs}
        self._agents = {own["agent"]: (by_file[own["file"]], own["index"]) for own in contract["agents"]}
        self.agent_ids = list(self._agents)
        self._need_infos = {own["agent"] for own in contract["agents"] if own["needs_info"]}
        self._draws = any(program.of_role("noise") for program in programs)
        self._rng = np.random.default_rng(seed)
        self._memory, self._fresh, self._newest = {}, {}, {}

    def __repr__(self):
        shown = ", ".join(map(str, self.agent_ids[:4])) + (", ..." if len(self.agent_ids) > 4 else "")
        files = ", ".join(program.about["file"] for program in self._programs)
        return f"<{type(self).__name__} of {len(self.agent_ids)} agents ({shown}) with {files}>"

    def __call__(self, observation, agent_id=None, *, reward=None, info=None, noise=None):
        """Returns an agent's action.

        Args:
            observation: The agent's observation from the environment, or a batch ``[B, ...]``.
            agent_id: The agent. It may be left out where only one agent is possible.
            reward: The sum of the agent's rewards since its last action, ``[B]`` for a batch. Some programs need it.
            info: The agent's info dict; for a batch, a list of dicts, or a dict of arrays. Its action mask is read.
            noise: ``[k]`` or ``[B, k]`` random numbers for a sampled action; None to draw them with the seed.

        Returns:
            The action in the form that ``env.step`` accepts; ``[B, ...]`` for a batch.
        """
        if agent_id is None:
            agent_id = self.contract["default_agent"]
            if agent_id is None:
                raise ValueError(f"OnnxPolicy: name the agent of the observation, one of {self.agent_ids}.")
        one = {"rewards": reward, "infos": info, "noise": noise}
        given = {name: None if value is None else {agent_id: value} for name, value in one.items()}
        return self.actions({agent_id: observation}, **given)[agent_id]

    def actions(self, observations, *, rewards=None, infos=None, agent_ids=None, noise=None):
        """Returns the actions of several agents, ``{agent: action}``.

        Args:
            observations: ``{agent: observation}``, all single ones or all batches of one size.
            rewards: ``{agent: reward}``, as in a call for one agent.
            infos: ``{agent: info}``, as in a call for one agent.
            agent_ids: The agents that act; None for all that have an observation.
            noise: ``{agent: noise}``, as in a call for one agent.

        Raises:
            ValueError: If an agent is unknown, or something that a program needs is missing or has another shape.
        """
        agents = list(observations if agent_ids is None else agent_ids)
        absent = [agent for agent in agents if agent not in observations]
        if absent:
            raise ValueError(f"OnnxPolicy: agent {absent[0]!r} is to act, but has no observation. Pass one.")
        rows = {agent: self._rows_of(agent, observations[agent]) for agent in agents}
        sizes = {size for size, _ in rows.values()}
        if len(sizes) > 1:
            raise ValueError(
                "OnnxPolicy: the observations are batches of different sizes. Pass one for each environment."
            )
        infos = infos or {}
        self._check_infos(agents, infos)
        size = sizes.pop() if sizes else None
        count = 1 if size is None else size
        before = self._rng.bit_generator.state if self._draws else None
        memory, newest, actions = {}, {}, dict.fromkeys(agents)
        try:
            for program in self._programs:
                own = [agent for agent in actions if self._find(agent)[0] is program]
                if not own:
                    continue
                feeds = [
                    {**rows[agent][1], **self._feed(program, agent, count, size is not None, rewards, infos, noise)}
                    for agent in own
                ]
                outputs = program.run({name: np.concatenate([feed[name] for feed in feeds]) for name in program.inputs})
                for i, agent in enumerate(own):
                    here = slice(i * count, (i + 1) * count)
                    newest[agent] = outputs.get("action_dist_inputs", np.zeros((0, 0)))[here]
                    memory[agent] = {kept["input"]: outputs[kept["output"]][here] for kept in program.about["memories"]}
                    actions[agent] = program.actions_of(outputs, here, is_batch=size is not None)
        except BaseException:
            if before is not None:
                self._rng.bit_generator.state = before
            raise
        self._memory |= memory
        self._newest |= newest
        self._fresh |= {agent: np.zeros(count, bool) for agent in memory}
        return actions

    def reset(self, ended=None, *, agent_ids=None):
        """Begins new episodes, and forgets the steps so far.

        Args:
            ended: ``[B]`` bool, True for the environments of a batch in which an episode has ended; None for all.
            agent_ids: The agents to reset; None for all.
        """
        if isinstance(ended, str) or isinstance(agent_ids, str):
            raise ValueError("OnnxPolicy: name agents to reset in a list: reset(agent_ids=[...]).")
        agents = list(self._memory if agent_ids is None else agent_ids)
        for agent in agents:
            self._find(agent)  # raises an error if it is unknown
        known = [agent for agent in agents if agent in self._memory]
        if ended is None:
            for agent in known:
                self._memory.pop(agent, None)
                self._fresh.pop(agent, None)
            return
        rows = np.atleast_1d(np.asarray(ended, bool))
        for agent in known:
            if rows.shape != self._fresh[agent].shape:
                raise ValueError(
                    f"OnnxPolicy: reset(ended) accepts one bool for each environment of the last batch, so "
                    f"{len(self._fresh[agent])}, but got the shape {rows.shape}."
                )
        for agent in known:
            self._fresh[agent] = self._fresh[agent] | rows
            initial = self._find(agent)[0].initial
            for name, values in self._memory[agent].items():
                self._memory[agent][name] = values.copy()
                self._memory[agent][name][rows] = initial[name]

    def newest_inputs(self, agent_id):
        """Returns ``[B, n]`` action distribution inputs of an agent's last action; None if its module has none."""
        found = self._newest[agent_id]
        return found if found.shape[1] else None

    # One call.

    def _find(self, agent):
        """Returns an agent's program, and its number there."""
        if agent in self._agents:
            return self._agents[agent]
        like = self.contract["unknown_agents_like"]
        if like is None:
            raise ValueError(f"OnnxPolicy: agent {agent!r} is unknown. The agents are {self.agent_ids}.")
        return self._agents[like]

    def _check_infos(self, agents, infos):
        """Raises a ValueError if masks of agents come in infos, but these agents have none."""
        like, without = self.contract["unknown_agents_like"], [agent for agent in agents if infos.get(agent) is None]
        lacking = [agent for agent in without if (agent if agent in self._agents else like) in self._need_infos]
        if lacking:
            key = self._find(lacking[0])[0].of_role("action_mask")[0]["path"][0]
            raise ValueError(
                f"OnnxPolicy: the action masks of {', '.join(map(repr, lacking))} are in infos, under {key!r}, but "
                f"this call has none, so that forbidden actions would be possible. Pass info=info, or infos=infos to "
                f"actions(). An info without a mask allows all actions."
            )

    def _rows_of(self, agent, observation):
        """Returns the number of observations (None for a single one), and the inputs that they are."""
        sizes, feed = set(), {}
        for own in self._find(agent)[0].of_role("observation"):
            value = observation
            try:
                for key in own["path"]:
                    value = value[key]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"OnnxPolicy: the observation of agent {agent!r} has no part {own['path']}.") from None
            array, shape = _array(value, f"the observation of agent {agent!r}"), tuple(own["shape"])
            if array.shape != shape and array.shape[1:] != shape:
                raise ValueError(
                    f"OnnxPolicy: the observation of agent {agent!r} ({own['name']}) must have the shape {shape}, or "
                    f"be a batch with one more axis, but has {array.shape}."
                )
            sizes.add(None if array.shape == shape else len(array))
            feed[own["name"]] = _in_dtype(
                array[None] if array.shape == shape else array, own["dtype"], f"the observation of agent {agent!r}"
            )
        if len(sizes) != 1:
            raise ValueError(
                f"OnnxPolicy: the parts of the observation of agent {agent!r} are batches of different sizes."
            )
        return sizes.pop(), feed

    def _feed(self, program, agent, count, is_batch, rewards, infos, noise):
        """Returns the inputs of an agent's rows that are no observations."""
        fresh, memory = self._fresh.get(agent), self._memory.get(agent, {})
        if fresh is None or len(fresh) != count:
            if fresh is not None and program.remembers and not fresh.all():
                raise ValueError(
                    f"OnnxPolicy: got observations of {count} environments, but of {len(fresh)} in the last call, "
                    f"whose earlier steps are remembered. Call reset() when other episodes begin."
                )
            fresh = np.ones(count, bool)
            memory = {name: np.repeat(own[None], count, 0) for name, own in program.initial.items()}
        feed = dict(memory)
        for own in program.of_role("agent"):
            feed[own["name"]] = np.full(count, self._find(agent)[1], np.int64)
        for own in program.of_role("reward"):
            feed[own["name"]] = _rewards(agent, fresh, (rewards or {}).get(agent))
        for own in program.of_role("action_mask"):
            feed[own["name"]] = program.masks((infos or {}).get(agent), count, is_batch, own)
        for own in program.of_role("noise"):
            given = (noise or {}).get(agent)
            numbers = program.draw(self._rng, count) if given is None else _array(given, f"the noise of {agent!r}")
            if numbers.size != count * int(np.prod(own["shape"])):
                raise ValueError(
                    f"OnnxPolicy: the noise of agent {agent!r} must have the shape {tuple(own['shape'])}, or be a "
                    f"batch with one more axis, but has {numbers.shape}."
                )
            feed[own["name"]] = _in_dtype(numbers, np.float32, f"the noise of {agent!r}").reshape(count, *own["shape"])
        return feed


class _Program:
    """One file, with what the contract says about it, and the function that computes its outputs."""

    def __init__(self, about, compute):
        self.about = about
        self._compute = compute
        self.inputs = [own["name"] for own in about["inputs"]]
        self._outputs = {own["name"]: own["dtype"] for own in about["outputs"]}
        named = {own["name"]: own for own in about["inputs"]}
        self.initial = {}
        for own in about["memories"]:
            spec = named[own["input"]]
            self.initial[spec["name"]] = np.array(own["initial"], spec["dtype"]).reshape(spec["shape"])
        self.remembers = bool(about["memories"]) or bool(self.of_role("reward"))

    def of_role(self, role):
        return [own for own in self.about["inputs"] if own["role"] == role]

    def run(self, feed):
        found = zip(self._outputs.items(), self._compute(feed), strict=True)
        return {name: values.view(dtype) for (name, dtype), values in found}

    def actions_of(self, outputs, rows, is_batch):
        """Returns the actions of some rows, as the environments accept them."""
        found = {
            tuple(own["path"]): outputs[own["name"]][rows] for own in self.about["outputs"] if own["role"] == "action"
        }
        space = self.about["action_space"]
        if is_batch:
            return _tree(space, found)
        if () in found:
            return found[()].tolist()[0] if found[()].ndim == 1 else found[()][0]
        return _tree(space, {path: values[0] for path, values in found.items()})

    def masks(self, info, count, is_batch, own):
        """Returns ``[count, n]`` bool, True in rows without a mask."""
        (key,), space = own["path"], self.about["action_space"]
        masks = np.ones((count, *own["shape"]), bool)
        for row, mask in enumerate(_by_row(info, key, count, is_batch)):
            if mask is not None:
                try:
                    flat = _flat_mask(space, mask)
                except (KeyError, IndexError, TypeError, ValueError):
                    raise ValueError(
                        f"OnnxPolicy: an action mask must be an array of numbers, or have the parts of the action "
                        f"space, but is {mask!r}."
                    ) from None
                if flat.shape != masks[row].shape:
                    raise ValueError(
                        f"OnnxPolicy: an action mask must have {own['shape'][0]} numbers, not {flat.size}."
                    )
                masks[row] = flat
        return masks

    def draw(self, rng, count):
        """Returns ``[count, k]`` random numbers for sampled actions."""
        if self.about["noise"] is None:
            raise ValueError(f"OnnxPolicy: {self.about['file']} has random numbers of an unknown kind. Pass noise=...")
        return np.concatenate([_DRAWS[kind](rng, (count, size)) for kind, size in self.about["noise"]], 1)


def _gumbel(rng, size):
    return -np.log(np.maximum(rng.standard_exponential(size, np.float32), np.finfo(np.float32).tiny))


_DRAWS = {
    "normal": lambda rng, size: rng.standard_normal(size, np.float32),
    "exponential": lambda rng, size: rng.standard_exponential(size, np.float32),
    "uniform": lambda rng, size: rng.random(size, np.float32),
    "gumbel": _gumbel,
    "logistic": lambda rng, size: rng.logistic(size=size).astype(np.float32),
}


def read_contract(folder):
    """Returns the content of ``contract.json``.

    Raises:
        ValueError: If it is missing, was changed, or is of another version.
    """
    path = Path(folder) / "contract.json"
    if not path.is_file():
        raise ValueError(f"OnnxPolicy: {folder} holds no contract.json. Pass a folder that export_onnx has written.")
    try:
        contract = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        contract = None
    if not isinstance(contract, dict):
        raise ValueError(f"OnnxPolicy: {path} is no contract of an export. Export the policy again.")
    if contract.get("format") != FORMAT or contract.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"OnnxPolicy: {path} has format {contract.get('format')!r}, version {contract.get('format_version')!r}, "
            f"but this file reads {FORMAT!r}, version {FORMAT_VERSION}. Use the onnx_policy.py beside it."
        )
    if contract.get("digest") != digest_of(contract):
        raise ValueError(f"OnnxPolicy: {path} was changed after the export. Export the policy again.")
    return contract


def digest_of(contract):
    """Returns the SHA-256 of a contract without its own digest, as a hexadecimal number."""
    rest = {key: value for key, value in contract.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _array(value, what):
    """Returns numbers as an array.

    Raises:
        ValueError: If they are no numbers of one shape.
    """
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"OnnxPolicy: {what} must be an array of numbers, or nested lists of one shape.")
    return array


def _in_dtype(array, dtype, what):
    """Returns an array with another dtype.

    Raises:
        ValueError: If the dtype cannot hold its numbers, or one of them is not finite.
    """
    if array.dtype != dtype:
        with np.errstate(all="ignore"):
            cast = array.astype(dtype)
        if cast.dtype.kind != "f" and not np.array_equal(cast, array):
            raise ValueError(f"OnnxPolicy: {what} has numbers that {dtype} cannot hold.")
        array = cast
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"OnnxPolicy: {what} has numbers that are not finite.")
    return array


def _rewards(agent, fresh, reward):
    """Returns ``[B]`` float32, 0 in the first step of an episode."""
    if reward is None:
        if not fresh.all():
            raise ValueError(
                f"OnnxPolicy: the program of agent {agent!r} reads rewards. Pass reward=... (or rewards=...)."
            )
        return np.zeros(len(fresh), np.float32)
    what = f"the reward of agent {agent!r}"
    rewards = _in_dtype(_array(reward, what), np.float32, what)
    if rewards.shape not in ((), fresh.shape):
        raise ValueError(f"OnnxPolicy: {what} must be a number, or have the shape {fresh.shape}, not {rewards.shape}.")
    return np.where(fresh, np.float32(0.0), rewards)


def _by_row(info, key, count, is_batch):
    """Returns the value of a key in the info of each row, None where it is missing."""
    if info is None or not len(info):
        return [None] * count
    if not isinstance(info, dict):
        if not is_batch or len(info) != count or not all(own is None or isinstance(own, dict) for own in info):
            raise ValueError(f"OnnxPolicy: an info must be a dict, or for a batch a list of {count} dicts.")
        return [(own or {}).get(key) for own in info]
    if not is_batch:
        return [info.get(key)]
    has = info.get(f"_{key}", np.ones(count, bool)) if key in info else np.zeros(count, bool)
    return [info[key][row] if has[row] else None for row in range(count)]


def _num_values(space) -> int:
    """Returns the number of values of all choices of a space: the length of its flat mask."""
    if space["type"] == "Discrete":
        return space["n"]
    if space["type"] == "MultiDiscrete":
        return int(np.sum(space["nvec"]))
    if space["type"] == "MultiBinary":
        return 2 * int(np.prod(space["n"]))
    return sum(_num_values(part) for _, part in _parts(space))


def _parts(space):
    """Returns the keys and spaces of the parts of a Dict or Tuple; none for other spaces."""
    if space["type"] == "Dict":
        return [(key, part) for key, part in space["spaces"]]
    return list(enumerate(space["spaces"])) if space["type"] == "Tuple" else []


def _flat_mask(space, mask):
    """Returns a mask as a vector of bools, one for each value of each choice."""
    if mask is None:
        return np.ones(_num_values(space), bool)
    if space["type"] in ("Dict", "Tuple"):
        own = [mask.get(key) if isinstance(mask, dict) else mask[key] for key, _ in _parts(space)]
        flat = [_flat_mask(part, masks) for (_, part), masks in zip(_parts(space), own, strict=True)]
        return np.concatenate([np.ones(0, bool), *flat])
    flat = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, (tuple, list)) else np.ravel(mask)
    flat = _array(flat, "an action mask")
    if not flat.size:
        return np.ones(_num_values(space), bool)
    if space["type"] == "MultiBinary" and 2 * flat.size == _num_values(space):
        return np.stack([flat != 1, flat != 0], -1).ravel()
    return flat != 0


def _tree(space, found, path=()):
    """Returns values by path as the dict or tuple that the space describes."""
    if path in found:
        return found[path]
    parts = {key: _tree(part, found, (*path, key)) for key, part in _parts(space)}
    return parts if space["type"] == "Dict" else tuple(parts.values())
