"""Stepping one half of the environment copies in worker processes while the other half's actions are worked out.

The halves act in turn: while the workers of one are stepping, what came of the other one's step is written down, and
its next actions are chosen and sent. So workers and this process wait for one another no longer than they must.

What is sampled is the same, bit for bit, as when all copies act together:

* Ends, arrivals and failures are dealt with in the same order. If the half that leads reports any, it waits for the
  other one, and the step ends as usual. If the other one does, nothing of what the leading half has done by then
  hangs on it.
* Nothing else may hang on the order: only default pieces, which keep no state, and no callbacks of episodes.
* Modules get half of the rows. Whether these come out the same is tried (see ``rehearsal.py``). Where they do not, and
  for modules of which trying does not tell, all copies act together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.env_runners.done_episodes import missing
from marl_connectors.env_runners.halves import Half
from marl_connectors.env_runners.prepared_actions import PreparedActions
from marl_connectors.env_runners.rehearsal import TriedCounts, same_bits
from marl_connectors.env_runners.stepper import Stepper
from marl_connectors.environments.vector_env import VectorStep
from marl_connectors.environments.worker_vector_env import WorkerVectorEnv
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.prepared_forward import has_hooks, has_own_methods
from marl_connectors.trees import tree_map
from marl_connectors.typing import ModuleID

_KNOWN_LAYERS = ("marl_connectors.", "torch.nn.")


class DoubleBufferedStepper(Stepper):
    """A Stepper that steps the halves of a WorkerVectorEnv's copies in turn, where nothing but the speed shows it.

    Attributes:
        double_buffering: Whether it may.
    """

    double_buffering = True
    _may_halve = False
    _halves: tuple[Half, ...] = ()  # none right after lanes were arranged
    _is_new = True  # whether no step was taken since lanes were arranged
    _alike: bool | None = None  # whether halves give what the whole gives, as the lanes are now; None if not known

    def __init__(self, *args: Any, **kwargs: Any):
        """As Stepper."""
        self._tried: dict[tuple[ModuleID, bool], TriedCounts] = {}
        self._prepared_halves = PreparedActions(), PreparedActions()
        super().__init__(*args, **kwargs)

    def _look_at_pieces(self) -> None:
        super()._look_at_pieces()
        self._alike = None
        self._may_halve = (
            self.double_buffering
            and isinstance(self.vector_env, WorkerVectorEnv)
            and len(self.vector_env.halves) == 2
            and self._episodes.told is None
            and all(type(piece) in DEFAULT_PIECES for piece in [*self.env_to_module, *self.module_to_env])
            and self._episodes.lanes.are_all_apart()
            and _is_known(self.rl_module)
        )
        if not self._may_halve:
            self._halves = ()
        for prepared in self._prepared_halves if self._may_halve else ():
            prepared.begin_sample(self.env_to_module, self.module_to_env)

    def _arrange(self) -> None:
        super()._arrange()
        self._halves, self._is_new = (), True

    def _divide(self) -> None:
        """Makes the halves, as the lanes are now."""
        env: Any = self.vector_env
        by_copy, groups = self._episodes.lanes.acting(), [group for group, _ in self._live]
        self._halves = tuple(Half(copies, by_copy, groups) for copies in env.halves)
        for number, half in enumerate(self._halves):
            self._prepared_halves[number].begin_arrangement()
            for group, _ in half.live:
                places = [(lane.env_index, lane.slot) for lane in group.acting]
                self._noise.place(group.index, group.rows, places, group.whole.num_slots, half=number)
        self._alike = self._verdict() if self._alike else None

    # Steps.

    def _take_steps(self, explore: bool, at_random: bool, wants_more: Callable[[], bool]) -> None:
        """Takes a vector step, or several, until the halves have to meet.

        Where agents come and go in each step, all copies act together: halves would have to meet each time.

        Args:
            explore: As for a single step.
            at_random: Likewise.
            wants_more: Asked before the leading half begins a step while the other one is in the middle of the one
                before: whether there will be another step, whatever comes of that one.
        """
        if at_random or not self._may_halve or self._is_new or not self._are_alike(explore):
            self._is_new = False
            self._take_step(explore, at_random)
            return
        chosen = self._choose_actions(explore, at_random=False)
        num_first = sum(len(group.acting) for group, _ in self._halves[0].live)
        self._begin(0, chosen[:num_first])
        self._begin(1, chosen[num_first:])
        for half in self._halves:
            half.locate()
        while True:
            step = self._finish(0)
            if step.transitions or not self._alike or not wants_more():
                break
            self._write_down(0, step)
            num_actions = self._act(0, explore)
            self._write_down(1, self._finish(1))
            num_actions += self._act(1, explore)
            self._count_step(num_actions)
        other = self._finish(1)
        for group, _ in self._live:
            group.locate()
        for name in ("rewards", "observations", "transitions", "infos"):
            getattr(step, name).extend(getattr(other, name))
        self._take_in(step)

    def _leaders_lack(self, num_episodes: int) -> bool:
        """Whether copies of the half that leads have still to end some of so many episodes."""
        lacking = missing(self._episodes.done, len(self.vector_env.copies), num_episodes)
        return any(lacking[: self._halves[1].copies.start])

    def _begin(self, number: int, actions: Any) -> None:
        env: Any = self.vector_env
        env.begin_step(number, actions)

    def _finish(self, number: int) -> VectorStep:
        env: Any = self.vector_env
        began = perf_counter()
        step = env.finish_step(number)
        self.times.env_step += perf_counter() - began
        return step

    def _write_down(self, number: int, step: VectorStep) -> None:
        """What a step of one half led to; of the leading one, only where nothing is out of the ordinary."""
        for group, pick in self._halves[number].live:
            self._credit(group, step.rewards if pick is None else pick(step.rewards), step)
            group.advance()
        if step.transitions:
            self._follow(step)
            if not self._halves:
                self._divide()
            for half in self._halves:
                half.locate()
        half = self._halves[number]
        self._observe(step.observations, half.live)
        for env_index, infos in step.infos:
            self._episodes.lanes.write_infos(env_index, infos)
        if not self._prepared_halves[number].is_open:
            half.batch = self._checked_batch(half.columns(), self._acting_in(half))

    def _act(self, number: int, explore: bool) -> int:
        """Lets a half choose actions, and begins its step; how many actions."""
        half, groups = self._halves[number], [group for group, _ in self._live]
        whole: ColumnBatch | None = None
        if not self._alike:  # agents came or went, and it is not known if halves give the same as they are now
            whole = self._run_env_to_module([ColumnGroup(group.rows) for group in groups], self._episodes.acting())
        began = perf_counter()
        if whole is None:
            batch = self._choose(self._prepared_halves[number], half.live, explore, half)
        else:
            outputs = half.part_of(self._forward(whole, explore), groups)
            batch = self._to_actions(outputs, self._acting_in(half), explore)
        actions = self._record(half.live, batch)
        self.times.module_to_env += perf_counter() - began
        self._begin(number, actions if half.pick_actions is None else half.pick_actions(actions))
        return len(actions)

    def _acting_in(self, half: Half) -> list[Any]:
        return self._episodes.acting()[half.copies]

    # Whether halves give the same.

    def _are_alike(self, explore: bool) -> bool:
        if not self._halves:
            self._divide()
        if self._alike is None:
            times = replace(self.times)
            self._alike = self._verdict() is not False and self._rehearse(explore)
            self.times = times  # it is no part of the steps
        return self._alike

    def _verdict(self) -> bool | None:
        """What is known of the numbers of rows that there are now."""
        found = [tried.verdict(counts) for tried, counts in self._counts_of_rows()]
        return False if False in found else None if None in found else True

    def _counts_of_rows(self) -> Iterator[tuple[TriedCounts, list[int]]]:
        """For each group that acts, what is known of its module, and the numbers of rows of its halves and of all."""
        for group, _ in self._live:
            (module_id,) = group.rows.module_ids
            key, module = (module_id, self._exploring), self.rl_module[module_id]
            if key not in self._tried or self._tried[key].module is not module:
                self._tried[key] = TriedCounts(module)
            halves = [len(own.acting) for half in self._halves for own, _ in half.live if own.whole is group]
            yield self._tried[key], [*halves, len(group.acting)]

    def _rehearse(self, explore: bool) -> bool:
        """Compares the very numbers of the next step, and tries those of other numbers of rows."""
        batch, groups = self._waiting_batch(), [group for group, _ in self._live]
        assert batch is not None
        forward = partial(self._forward, explore=explore)
        whole = self._to_actions(forward(batch), self._episodes.acting(), explore)
        for group in whole.groups:
            group.update({name: tree_map(np.copy, column) for name, column in group.items()})
        for half in self._halves:
            half.locate()
            episodes = self._acting_in(half)
            half.batch = self._run_env_to_module(half.columns(), episodes)
            own = self._to_actions(half.forward(forward), episodes, explore)
            for found, expected in zip(own.groups, half.part_of(whole, groups).groups, strict=True):
                if not same_bits(dict(found), dict(expected)):
                    return False
        tried = zip(batch.groups, self._counts_of_rows(), strict=True)
        return all(known.try_out(forward, columns, counts) for columns, (known, counts) in tried)


def _is_known(rl_module: MultiRLModule) -> bool:
    """Whether forward passes are the library's and PyTorch's own, of which it can be told by trying what they do."""
    return type(rl_module) is MultiRLModule and all(
        type(part).__module__.startswith(_KNOWN_LAYERS)
        and not (part.training or has_hooks(part) or has_own_methods(part))
        for part in rl_module.modules()
    )
