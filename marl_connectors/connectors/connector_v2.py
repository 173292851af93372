"""ConnectorV2, the base class of all connector pieces, and what pipelines need to know about a piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space

from marl_connectors.checkpoints import Checkpointable
from marl_connectors.connectors.arguments import argument, check_names, set_arguments, signature_of
from marl_connectors.connectors.calls_by_hand import call_on_items
from marl_connectors.connectors.item_batch import agent_episodes_of, item_key
from marl_connectors.connectors.piece_errors import progress
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE, LEARNER
from marl_connectors.episodes.batch import ColumnGroup, Phase
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError, did_you_mean
from marl_connectors.state import State, fields_of
from marl_connectors.trees import unstack
from marl_connectors.typing import AgentID, ItemKey
from marl_connectors.validators import shown

if TYPE_CHECKING:
    from typing_extensions import Self


class Arguments:
    """The arguments of a piece's constructor, for checkpoints. Copies of a piece share them; pickles leave them out."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...] | None = None, kwargs: Mapping[str, Any] | None = None):
        self.args = args
        self.kwargs = kwargs

    def __deepcopy__(self, memo: Any) -> Arguments:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Arguments, ()


class ConnectorV2(Checkpointable):
    """A piece of a connector pipeline.

    A piece works on *items*, on *columns*, or on both with identical results:

    * On items, override ``__call__``. It gets the episodes and the batch under construction, a nested dict of lists of
      single items, and may read from and write to both. This form is the most convenient one, but it costs Python code
      for each item. The items of a column are made when the piece first looks at that column.
    * On columns, override ``columns``. It gets arrays with one row for each agent-step. This form is the fast one: a
      pipeline in which all pieces have it never makes a single item. Around a piece without it, the pipeline converts
      the batch.

    >>> class ScaleObservations(ConnectorV2):
    ...     def columns(self, c, xp):
    ...         c["obs"] = xp.astype(c["obs"] / 255.0, xp.float32)

    A piece that changes spaces overrides ``recompute_output_observation_space`` (or ``..._action_space``).
    """

    _constructed_with = Arguments()
    phase_after: Phase | None = None
    """The phase of the batch after this piece; None if the piece does not change the phase."""
    puts_observations_in_batch = False
    """Whether the piece adds ``obs`` to the batch. Pieces before it that change the observation space are assumed to
    write the observations to the episodes."""
    nothing_on_columns = False
    """True for a piece whose work on items has no counterpart in columns. A pipeline that runs on columns skips it."""
    in_learner_pipeline: bool | None = None
    """Whether the piece makes train batches. Its pipeline sets this; None while no pipeline has."""
    looks_at_other_agents: bool | None = None
    """Whether the piece's result for an agent depends on which other agents are present in the same step.

    A ``Policy`` that acts agent by agent needs to know. The library's pieces look at each agent alone unless they set
    this to True. For a user's piece that leaves it at None, a ``Policy`` tries it out when it matters.
    """
    belongs_in: tuple[str, ...] = ()
    """The kinds of pipeline that the piece may be in: ``"env_to_module"``, ``"module_to_env"``, ``"learner"``.

    An empty tuple allows all of them. A subclass of one of the library's pieces inherits its rules, also those about
    the order of pieces, unless it sets this to ``()``.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Raises an error for an unknown argument, which names the closest one that the constructor accepts."""
        check_names(cls, kwargs)
        piece = super().__new__(cls)
        piece._constructed_with = Arguments(args, kwargs)
        return piece

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = signature_of(cls, ConnectorV2.__init__)  # type: ignore[attr-defined]

    def __init__(
        self, input_observation_space: Space | None = None, input_action_space: Space | None = None, **arguments: Any
    ):
        """Builds the piece.

        Args:
            input_observation_space: The observation space before this piece, if it is known already. A pipeline sets
                it. With several agents it is a Dict space by agent id.
            input_action_space: The action space before this piece, in the same form.
            **arguments: The arguments that the class declares with ``argument``.
        """
        self._input_observation_space = input_observation_space
        self._input_action_space = input_action_space
        self._observation_space: Space | None = None
        self._action_space: Space | None = None
        set_arguments(self, arguments)
        self.begin()
        if input_observation_space is not None or input_action_space is not None:
            self.set_input_spaces(input_observation_space, input_action_space)

    # To override.

    def begin(self) -> None:
        """Prepares what follows from the arguments. The constructor calls it, before it sets the spaces."""

    def __call__(
        self,
        *,
        rl_module: Any = None,
        batch: dict[str, Any],
        episodes: Sequence[Any] = (),
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Works on items. If the piece has ``columns`` only, the items are converted to columns and back.

        Args:
            rl_module: The module whose batch is made or whose output is translated: in env runners and policies the
                RLModule of a single agent, else the MultiRLModule.
            batch: The batch that the pieces before made; the first piece gets ``{}``.
            episodes: SingleAgentEpisodes or MultiAgentEpisodes. Later pieces and the learner see what a piece writes
                to them.
            explore: Whether actions will be sampled; None in a learner pipeline.
            shared_data: Pieces use this dict to pass data to later pieces of the same step, also to those of the
                module-to-env pipeline.
            metrics: A MetricsLogger, or None.
            **kwargs: Arguments that newer versions may add.

        Returns:
            The batch for the next piece.

        Raises:
            NotImplementedError: If the class overrides neither ``__call__`` nor ``columns``.
        """
        if type(self).columns is ConnectorV2.columns:
            raise NotImplementedError(f"{type(self).__name__}: override __call__ (on items) or columns (on columns).")
        common = {"rl_module": rl_module, "explore": explore, "shared_data": shared_data, "metrics": metrics, **kwargs}
        return call_on_items(self, batch, episodes, **common)

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Works on columns: reads and sets ``c[name]`` (``[B, ...]``) in place.

        The pipeline calls it once for each group of agents with like spaces. ``c.rows.get(name, offset)`` reads the
        agents' trajectories, and ``c.rows.set(name, values)`` writes back to them. ``c.rl_module``, ``c.explore``,
        ``c.shared_data`` and ``c.metrics`` are the arguments of ``__call__``.

        A piece that computes with functions of ``xp`` alone also becomes part of an exported ONNX program, in which
        columns and trajectories are tensors.

        Args:
            c: The batch under construction; row ``i`` belongs to agent-step ``i`` of ``c.rows``.
            xp: The array namespace of the columns: numpy, or that of tensors after NumpyToTensor, before TensorToNumpy
                and while a program is recorded. It has the functions of the array API standard.
        """
        raise NotImplementedError(f"{type(self).__name__}: override __call__ (on items) or columns (on columns).")

    def before_columns(self, groups: Sequence[ColumnGroup], rl_module: Any) -> None:
        """Prepares a batch once for all groups. It is called before ``columns`` is called for each.

        Args:
            groups: The groups that ``columns`` gets next, one after another.
            rl_module: As in ``__call__``.
        """

    def after_columns(self, groups: Sequence[ColumnGroup], shared_data: dict[str, Any]) -> None:
        """Completes a batch once for all groups. It is called after ``columns`` was called for each.

        If several learners update the modules together, each of them calls this method, also a learner without any
        rows. So a piece that needs numbers of all rows can exchange them here, and only here, with
        ``shared_data[RANKS].gather(...)``. In all other methods it sees the rows of its own learner only.

        Args:
            groups: The groups that ``columns`` got, which may be none.
            shared_data: As in ``__call__``.
        """

    def check_can_be_divided(self) -> None:
        """Checks that several learners, of which each runs the piece on its own rows, get what one learner would get.

        Raises:
            LearnerError: If they do not.
        """

    def recompute_output_observation_space(
        self, input_observation_space: Space | None, input_action_space: Space | None
    ) -> Space | None:
        """Returns the observation space after this piece.

        Args:
            input_observation_space: The space before this piece. In multi-agent use it is a Dict space by agent id, and
                so is the returned one.
            input_action_space: The action space before this piece, in the same form.
        """
        return input_observation_space

    def recompute_output_action_space(
        self, input_observation_space: Space | None, input_action_space: Space | None
    ) -> Space | None:
        """Returns the action space after this piece; see ``recompute_output_observation_space``."""
        return input_action_space

    def know_agent(self, agent_id: AgentID, like: AgentID) -> None:
        """Adds an agent that is in none of the spaces, and treats it like an agent that is.

        A ``Policy`` calls this when it acts for agents that were absent in training. A piece that keeps nothing by
        agent id need not override it.

        Args:
            agent_id: The new agent.
            like: An agent of the spaces.
        """

    def get_state(self) -> Any:
        """Returns what the piece has learned, as a dict of JSON data and arrays, or as a ``State``."""
        return {}

    def set_state(self, state: Any) -> None:
        """Sets a state that ``get_state`` has returned."""

    def reset_state(self) -> None:
        """Forgets what the piece has learned."""

    def merge_own_state(self) -> None:
        """Merges what the piece has learned since the last merge into what it applies.

        An env runner calls this at the end of each sample, and a learner at the end of each update, unless it is
        one of several whose states are merged with one another. The result is that of
        ``set_state(merge_states([get_state()]))``, which this method calls if the class overrides ``merge_states``.
        Override it if there is a faster way to the same result.
        """
        if type(self).merge_states is not ConnectorV2.merge_states:
            self.set_state(self.merge_states([self.get_state()]))

    def merge_states(self, states: list[Any]) -> Any:
        """Merges the states that the piece has in several runners or learners into one. Override it if they can differ.

        Runners and learners continue with the result after each sample or batch, also one that is alone. So what was
        learned before the last merge, which is in all of the states, must not count more than once.

        Args:
            states: The states of the piece in all runners or learners, in their order.

        Raises:
            ConnectorError: If the states differ and the class does not override this method.
        """
        if any(not same_state(states[0], state) for state in states[1:]):
            raise ConnectorError(
                f"{type(self).__name__}: the {len(states)} states of this piece differ, and the class does not say how "
                f"to merge them. Override merge_states(states) and return one state, or set "
                f"merge_env_runner_states=False, with which each env runner keeps its own."
            )
        return states[0] if states else {}

    # Spaces.

    @property
    def input_observation_space(self) -> Space | None:
        """The observation space before this piece."""
        return self._input_observation_space

    @input_observation_space.setter
    def input_observation_space(self, space: Space | None) -> None:
        self.set_input_spaces(space, self._input_action_space)

    @property
    def input_action_space(self) -> Space | None:
        """The action space before this piece."""
        return self._input_action_space

    @input_action_space.setter
    def input_action_space(self, space: Space | None) -> None:
        self.set_input_spaces(self._input_observation_space, space)

    @property
    def observation_space(self) -> Space | None:
        """The observation space after this piece."""
        return self._observation_space

    @property
    def action_space(self) -> Space | None:
        """The action space after this piece."""
        return self._action_space

    def set_input_spaces(self, observation_space: Space | None, action_space: Space | None) -> None:
        """Sets the spaces before this piece and works out those after it."""
        self._input_observation_space = observation_space
        self._input_action_space = action_space
        self._observation_space = (
            None
            if observation_space is None
            else self.recompute_output_observation_space(observation_space, action_space)
        )
        self._action_space = (
            None if action_space is None else self.recompute_output_action_space(observation_space, action_space)
        )

    # Tools for pieces that work on items.

    @staticmethod
    def single_agent_episode_iterator(
        episodes: Sequence[SingleAgentEpisode | MultiAgentEpisode],
        agents_that_stepped_only: bool = True,
        zip_with_batch_column: Mapping[ItemKey, list] | None = None,
    ) -> Iterator[Any]:
        """Iterates over all SingleAgentEpisodes, also over those inside MultiAgentEpisodes.

        Args:
            episodes: SingleAgentEpisodes, MultiAgentEpisodes, or both.
            agents_that_stepped_only: Whether to leave out agents of a MultiAgentEpisode that did not observe at its
                newest env step. Agents that ended at that step are left out too, unless all of them did, since a batch
                for acting has no rows for them.
            zip_with_batch_column: A column of a batch of items, ``{key: [item, ...]}``. With it, the iterator yields
                pairs of an episode and its next item, for episodes that have one.

        Yields:
            SingleAgentEpisodes, or pairs of a SingleAgentEpisode and an item.
        """
        items = {key: iter(values) for key, values in (zip_with_batch_column or {}).items()}
        before = progress.episode  # an error message names the episode if the caller fails on it
        try:
            for episode in episodes:
                for part in agent_episodes_of(episode, stepped_only=agents_that_stepped_only):
                    progress.episode = part
                    if zip_with_batch_column is None:
                        yield part
                        continue
                    for item in items.get(item_key(part), iter(())):
                        yield part, item
                        break
        except GeneratorExit:
            progress.leave_loop()
            raise
        finally:
            progress.episode = before

    @staticmethod
    def add_batch_item(
        batch: dict[str, Any], column: str, item_to_add: Any, single_agent_episode: SingleAgentEpisode | None = None
    ) -> None:
        """Appends an item to a column of a batch, under its episode's key, or to a plain list without an episode."""
        if single_agent_episode is None:
            batch.setdefault(column, []).append(item_to_add)
        else:
            batch.setdefault(column, {}).setdefault(item_key(single_agent_episode), []).append(item_to_add)

    @staticmethod
    def add_n_batch_items(
        batch: dict[str, Any],
        column: str,
        items_to_add: Any,
        num_items: int,
        single_agent_episode: SingleAgentEpisode | None = None,
    ) -> None:
        """Appends several items to a column of a batch.

        Args:
            batch: The batch of items.
            column: The column's name.
            items_to_add: A list of items, or an array or tree of arrays whose first axis counts them.
            num_items: The number of items.
            single_agent_episode: The episode whose key the items go under; without one they go to a plain list.

        Raises:
            ValueError: If ``items_to_add`` does not have ``num_items`` items.
        """
        items = items_to_add if isinstance(items_to_add, list) else unstack(items_to_add)
        if len(items) != num_items:
            raise ValueError(f"add_n_batch_items: expected {num_items} items of {column!r}, got {len(items)}.")
        if single_agent_episode is None:
            batch.setdefault(column, []).extend(items)
        else:
            batch.setdefault(column, {}).setdefault(item_key(single_agent_episode), []).extend(items)

    @staticmethod
    def foreach_batch_item_change_in_place(
        batch: dict[str, Any], column: str | Sequence[str], func: Callable[[Any, Any, Any, Any], Any]
    ) -> None:
        """Replaces each item by ``func(item, eps_id, agent_id, module_id)``.

        With several columns, ``func`` gets and returns a tuple with one item for each. For items in a plain list all
        ids are None; for items by module only ``module_id`` is set.

        Raises:
            ValueError: If the batch has no such column.
        """
        names = [column] if isinstance(column, str) else list(column)
        for columns, ids in _item_lists(batch, names):
            for i, items in enumerate(zip(*(columns[name] for name in names), strict=True)):
                try:
                    results = func(items[0] if isinstance(column, str) else items, *ids)
                except Exception:
                    progress.item = (column, ids)
                    raise
                for name, result in zip(names, [results] if isinstance(column, str) else results, strict=True):
                    columns[name][i] = result

    @staticmethod
    def switch_batch_from_column_to_module_ids(batch: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Turns ``{column: {module_id: x}}`` into ``{module_id: {column: x}}``."""
        switched: dict[str, dict[str, Any]] = {}
        for column, by_module in batch.items():
            for module_id, values in by_module.items():
                switched.setdefault(module_id, {})[column] = values
        return switched

    def __repr__(self) -> str:
        given = {} if self._constructed_with.kwargs is None else self._constructed_with.kwargs
        return f"{type(self).__name__}({', '.join(f'{name}={shown(value)}' for name, value in given.items())})"


class InBothPipelines(ConnectorV2):
    """Base of pieces for env-to-module and learner pipelines that must know which of the two they are in.

    The pipeline sets this.

    Args:
        as_learner_connector: Whether the piece is in a learner pipeline, for a piece outside of a pipeline, or in a
            plain ``ConnectorPipelineV2``. It must not contradict the pipeline; None leaves it to the pipeline.
    """

    belongs_in = (ENV_TO_MODULE, LEARNER)
    as_learner_connector: bool | None = argument(default=None)

    @property
    def learns(self) -> bool:
        """Whether the piece works on all steps of the episodes, for a train batch."""
        said = self.as_learner_connector
        return bool(self.in_learner_pipeline) if said is None else said


def same_state(one: Any, other: Any) -> bool:
    """Whether two states, which consist of JSON data, arrays and other states, are equal."""
    one, other = (fields_of(state) if isinstance(state, State) else state for state in (one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_state(part, other[key]) for key, part in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same_state(*parts) for parts in zip(one, other, strict=True))
    one_array, other_array = np.asarray(one), np.asarray(other)
    both_floats = one_array.dtype.kind in "fc" and other_array.dtype.kind in "fc"
    return np.array_equal(one_array, other_array, equal_nan=both_floats)


def looks_at_other_agents(piece: ConnectorV2) -> bool | None:
    """``piece.looks_at_other_agents``; False for the library's own pieces that leave it at None."""
    if piece.looks_at_other_agents is None and type(piece).__module__.startswith("marl_connectors."):
        return False
    return piece.looks_at_other_agents


def _item_lists(batch: dict[str, Any], names: list[str]) -> Iterator[tuple[dict[str, list], tuple[Any, ...]]]:
    """Yields the lists of items of the named columns that belong together, with (eps_id, agent_id, module_id)."""
    if names[0] in batch:
        if not isinstance(batch[names[0]], dict):
            yield {name: batch[name] for name in names}, (None, None, None)
            return
        for key in batch[names[0]]:
            yield {name: batch[name][key] for name in names}, (*key, None, None)[:3]
        return
    with_column = [(m, columns) for m, columns in batch.items() if isinstance(columns, dict) and names[0] in columns]
    if not with_column:
        raise ValueError(
            f"foreach_batch_item_change_in_place: the batch has no column {names[0]!r}. {did_you_mean(names[0], batch)}"
        )
    for module_id, columns in with_column:
        yield {name: columns[name] for name in names}, (None, None, module_id)


def works_on_columns(piece: ConnectorV2) -> bool:
    """Whether a pipeline runs a piece on columns. The most derived class that has either method decides."""
    for cls in type(piece).__mro__:
        own = vars(cls)
        if "columns" in own or "__call__" in own:
            return ("columns" in own or own.get("nothing_on_columns", False)) and cls is not ConnectorV2
    return False
