"""RemoteEnvRunners: env runners in Ray actors that together behave like one EnvRunner with all sub-environments."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from marl_connectors.cluster.actor_pool import ActorLost, ActorPool, Call, Reply, RestartPolicy, Watch
from marl_connectors.cluster.host import Stored
from marl_connectors.cluster.hosted_env_runner import (
    EnvRunnerBlueprint,
    HostedEnvRunner,
    PlayReply,
    PlayRequest,
    RunnerProgress,
    SampleReply,
    SampleRequest,
    SavedState,
    known_states,
)
from marl_connectors.cluster.pickling import pickled, pickled_function, received_result, unpickled
from marl_connectors.cluster.ray_cluster import RayCluster, Resources
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2, pieces_of
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.env_runners.done_episodes import DoneEpisode, first_rounds, merged_order, shares
from marl_connectors.env_runners.env_runner_group import EnvRunnerGroup
from marl_connectors.env_runners.env_runner_state import EnvRunnerState
from marl_connectors.env_runners.run_metrics import EpisodeSummary, SamplingTimes, summarize
from marl_connectors.env_runners.sample import Fragment, Sample, joined
from marl_connectors.errors import ConfigError, EpisodeError, counted
from marl_connectors.metrics import MetricsLogger, by_pipeline, merged_metrics, reduced, with_logged
from marl_connectors.policy_mapping import PolicyMappingFn
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.state import copied
from marl_connectors.trees import tree_map

_LOG = logging.getLogger(__name__)


class _Kept(NamedTuple):
    """The last known state of an env runner.

    Attributes:
        saved: The state.
        blueprint: The blueprint that the env runner followed then.
    """

    saved: SavedState
    blueprint: Stored


@dataclass(slots=True)
class _Progress:
    """What samples change, besides the pipelines and the loggers of this process.

    Attributes:
        uncredited_rewards: The uncredited rewards of each sub-environment since the last ``take_counts``.
        kept: The last known states of the env runners that have answered a call.
        next_states: The connector states that the env runners do not have yet.
        restarts_episodes: Whether the next sample begins new episodes.
        after_episodes: Those after which they begin, for each env runner, as in ``EnvRunner.restart_episodes``.
        begins_iteration: Whether the metrics of the former iteration have been reported.
        counts: The counts of the samples since the last ``take_counts``.
        finished: The episodes that ended since the last ``take_finished``.
    """

    uncredited_rewards: list[float]
    kept: dict[int, _Kept] = field(default_factory=dict)
    next_states: dict[str, Any] | None = None
    restarts_episodes: bool = False
    after_episodes: dict[int, Sequence[int]] = field(default_factory=dict)
    begins_iteration: bool = False
    counts: list[dict[str, Any]] = field(default_factory=list)
    finished: list[EpisodeSummary] = field(default_factory=list)

    def env_runners_follow(self) -> None:
        """Notes that the env runners have all that they are to get with the next sample."""
        self.next_states, self.restarts_episodes, self.begins_iteration = None, False, False
        self.after_episodes = {}

    def copy(self) -> _Progress:
        """Returns the progress so far, which further samples do not change."""
        return _Progress(**{each.name: copy.copy(getattr(self, each.name)) for each in fields(self)})


class RemoteEnvRunners(EnvRunnerGroup):
    """Env runners in Ray actors. The sub-environments are divided among them in the order of their numbers.

    What a sub-environment plays depends on its number and the weights alone, so the samples are those of one EnvRunner
    with all sub-environments, in the same order. Each reply has the state of the env runner after the call. If an env
    runner is lost, its replacement continues from the last state, and repeats the call.

    Attributes:
        num_envs: The number of sub-environments of each env runner.
        pool: The actors.
    """

    local_env_runner = None

    def __init__(
        self,
        make_blueprint: Callable[[], EnvRunnerBlueprint],
        *,
        cluster: RayCluster,
        num_envs: Sequence[int],
        resources: Resources,
        policy: RestartPolicy,
        rl_module: MultiRLModule,
        env_to_module: ConnectorPipelineV2,
        module_to_env: ConnectorPipelineV2,
        complete_episodes: bool,
        merges_states: bool = True,
        fetches_episodes: bool = True,
        for_evaluation: bool = False,
    ):
        """Starts the actors, and does not wait for them.

        Args:
            make_blueprint: Returns a blueprint of the run as it is now, by which env runners are made.
            cluster: The connection to Ray.
            num_envs: The number of sub-environments of each env runner.
            resources: What each actor reserves.
            policy: What happens if an actor is lost.
            rl_module: The modules of this process, whose parameters the env runners act with.
            env_to_module: The pipeline of this process, which gets the merged states.
            module_to_env: The pipeline of this process, which gets the merged states.
            complete_episodes: As for EnvRunner.
            merges_states: Whether the states of connector pieces are merged after each sample, and all env runners
                continue with the merged ones. Otherwise each continues with its own, and the pipelines of this process
                get those of the first env runner.
            fetches_episodes: Whether episodes are fetched to this process at once. Otherwise learners fetch them.
            for_evaluation: Whether the actors only ``play``.
        """
        self._cluster = cluster
        self._make_blueprint = make_blueprint
        self._blueprint = Stored()
        blueprint = self._put_blueprint()
        self.lookback, self._rollout_fragment_length = blueprint.lookback, blueprint.rollout_fragment_length
        self.num_envs = list(num_envs)
        self._bounds = list(pairwise(accumulate(num_envs, initial=0)))
        self.rl_module = rl_module
        self.env_to_module = env_to_module
        self.module_to_env = module_to_env
        self._complete_episodes = complete_episodes
        self._rates: dict[int, float] = {}
        self.metrics = {name: MetricsLogger() for name in ("env_to_module", "module_to_env")}
        self.callback_metrics = MetricsLogger()
        self._merges_states = merges_states
        self._for_evaluation = for_evaluation
        self._progress = _Progress([0.0] * sum(num_envs))
        self._weights = Stored()
        self._running: dict[int, RunnerProgress] = {}  # how far env runners are in the ongoing sample
        self._num_played = 0
        self._has_failed = False  # whether the newest sample has ended with an error, so that states are unknown
        self._fails_again = False  # whether the next sample would repeat one that has ended with an error
        self._times = SamplingTimes()
        self.pool = ActorPool(
            cluster,
            len(num_envs),
            resources,
            policy,
            who=self._name_of,
            begin=self._arguments_of,
            fetches_payloads=fetches_episodes,
        )

    def __repr__(self) -> str:
        return (
            f"<EnvRunnerGroup of {counted(self.num_remote_env_runners, 'remote env runner')} with "
            f"{counted(sum(self.num_envs), 'sub-environment')}: {counted(self.num_env_steps, 'env step')}>"
        )

    @property
    def num_remote_env_runners(self) -> int:
        return len(self.num_envs)

    @property
    def num_healthy_remote_env_runners(self) -> int:
        return len(self.pool.indices)

    @property
    def num_remote_env_runner_restarts(self) -> int:
        return self.pool.num_restarts

    def env_steps_per_second(self) -> dict[int, float]:
        return {index: rate for index, rate in self._rates.items() if index in self.pool.indices}

    def take_recreated(self) -> list[int]:
        return self.pool.take_replaced()

    @property
    def num_env_steps(self) -> int:
        return sum(kept.saved.num_env_steps for kept in self._progress.kept.values())

    @property
    def num_agent_steps(self) -> int:
        return sum(kept.saved.num_agent_steps for kept in self._progress.kept.values())

    @property
    def num_steps_so_far(self) -> tuple[int, int]:
        now: dict[int, Any] = {index: kept.saved for index, kept in self._progress.kept.items()} | self._running
        return sum(own.num_env_steps for own in now.values()), sum(own.num_agent_steps for own in now.values())

    def _name_of(self, index: int) -> str:
        if self._for_evaluation:
            return f"evaluation env runner {index}"
        begin, end = self._bounds[index]
        own = f"sub-environment {begin}" if end == begin + 1 else f"sub-environments {begin} to {end - 1}"
        return f"env runner {index} ({own})"

    def _arguments_of(self, index: int) -> tuple[Any, ...]:
        begin, end = self._bounds[index]
        number = 0 if self._for_evaluation else end - begin
        kept = self._progress.kept.get(index)
        if kept is None:
            return pickled(HostedEnvRunner), (self._blueprint, begin, number, None)
        why = kept.saved.why_not_saved or kept.saved.why_not_kept
        if why:
            _LOG.warning(
                "%s begins new episodes, because those before cannot be restored: %s. So the run goes on, but not as "
                "it would have without the loss.",
                self._name_of(index),
                why.rstrip("."),
            )
        return pickled(HostedEnvRunner), (kept.blueprint, begin, number, kept.saved.state)

    def wait_until_begun(self) -> None:
        """Waits until all env runners have made their sub-environments."""
        self.pool.wait_until_begun()
        if self.pool.policy.ignores and not self._for_evaluation:
            self._refresh()  # so that the state of an env runner is known even if it is lost before its first sample

    # Changes of the run.

    def _put_blueprint(self) -> EnvRunnerBlueprint:
        blueprint = self._make_blueprint()
        self._blueprint = Stored(self._blueprint.version + 1, [self._cluster.put(pickled(blueprint))])
        return blueprint

    def modules_changed(self) -> None:
        self._put_blueprint()

    def set_policy_mapping_fn(self, policy_mapping_fn: PolicyMappingFn) -> None:
        self._put_blueprint()  # it has the config's function

    def return_to_episodes(self) -> None:
        """Does nothing: new actors continue the episodes with the pieces that they had."""

    def send_weights(self) -> None:
        """Puts the parameters as they are now into Ray's store, once for all env runners."""
        parameters = _arrays(self.rl_module.get_state())
        self._weights = Stored(self._weights.version + 1, [self._cluster.put(parameters)])

    def get_connector_states(self) -> dict[str, Any]:
        """Returns the states of the pipelines of this process, for ``EnvRunner.set_connector_states``."""
        states = {"env_to_module": self.env_to_module.get_state(), "module_to_env": self.module_to_env.get_state()}
        return {**states, "before_batch": None}

    def restart_episodes(self) -> None:
        self._progress.restarts_episodes = True

    # Going back.

    def now(self) -> Callable[[], None]:
        """Returns a function that restores what samples change, as it is now, and lets new actors continue from it."""
        progress, pieces = self._progress.copy(), copied(self.get_connector_states())
        loggers = [(logger, logger.get_state()) for logger in self._loggers().values()]

        def go_back() -> None:
            self._fails_again, self._has_failed = self._has_failed, False
            if not self._fails_again:  # else they say first where they have failed
                self.pool.restart_later()
            self._progress = progress.copy()
            self.env_to_module.set_state(pieces["env_to_module"])
            self.module_to_env.set_state(pieces["module_to_env"])
            for logger, state in loggers:
                logger.set_state(state)

        return go_back

    def _loggers(self) -> dict[str, MetricsLogger]:
        return {**self.metrics, "callbacks": self.callback_metrics}

    # Sampling.

    def sample(self, *, num_timesteps: int | None = None, times: int = 1) -> Sample:
        """Samples with all env runners at once.

        After an error of an environment, a module or a piece, the next sample begins new episodes. After an interrupt,
        ``now``'s function goes back to where all env runners were before.

        Args:
            num_timesteps: As for ``EnvRunner.sample``, over all env runners.
            times: The number of samples of this size that follow one another. They are sent ahead if none depends on
                what the env runners have learned in the one before.
        """
        if times > 1 and self._merges_states and self._can_learn():
            return joined([self.sample(num_timesteps=num_timesteps) for _ in range(times)])
        if self._weights.version < 0:
            self.send_weights()
        if self._fails_again:
            self._skip_failed_episodes()
        if self._has_failed:
            self._refresh()
        return self._sample(self._requests(num_timesteps, times), times)

    def _can_learn(self) -> bool:
        """Whether pieces may have states to merge after a sample, even if they have none yet."""
        pieces = [*pieces_of(self.env_to_module), *pieces_of(self.module_to_env)]
        return any(type(piece).get_state is not ConnectorV2.get_state for piece in pieces)

    def _skip_failed_episodes(self) -> None:
        """Lets the next sample begin new episodes, after those that env runners played when sampling failed."""
        replies = self.pool.run({index: [Call("episode_numbers", ())] for index in self.pool.indices})
        self._progress.after_episodes = {index: own[0].value for index, own in replies.items()}
        self._progress.restarts_episodes, self._fails_again = True, False
        self.pool.restart_later()

    def _sample(self, requests: Mapping[int, Sequence[SampleRequest]], times: int) -> Sample:
        began = time.perf_counter()
        calls = {index: [Call("sample", (request,)) for request in own] for index, own in requests.items()}
        try:
            replies = self.pool.run(
                calls,
                lambda index, _, reply: self._keep(index, reply.value.saved),
                max_in_flight=times,
                watch=self._watch_sample,
            )
        except ActorLost:
            raise
        except Exception:  # if the env runners went back, the same error would come again
            self._has_failed = self._progress.restarts_episodes = True
            raise
        finally:
            self._running = {}
        replies = dict(sorted(replies.items()))
        self._progress.env_runners_follow()
        rounds = [[own[number] for own in replies.values()] for number in range(times)]
        for found in rounds:
            self._note([reply.value for reply in found])
        seconds = time.perf_counter() - began
        for index, own in replies.items():
            own_seconds = sum(reply.value.seconds for reply in own)
            self._rates[index] = sum(reply.value.num_env_steps for reply in own) / own_seconds
        self._note_times([reply.value.times for found in rounds for reply in found], len(replies), seconds)
        self._merge([own[-1].value for own in replies.values()])
        return Sample(
            [[reply.value.fragment._replace(payload=reply.payload) for reply in found] for found in rounds], self._fetch
        )

    def _watch_sample(self, waiting: Collection[int]) -> None:
        self._running = self.pool.progress(waiting)

    def _requests(self, num_timesteps: int | None, times: int) -> dict[int, list[SampleRequest]]:
        """Returns each env runner's share of a sample."""
        total = sum(self.num_envs)
        if num_timesteps is None and not self._complete_episodes:
            num_timesteps = total * self._rollout_fragment_length
        steps = None if num_timesteps is None else math.ceil(num_timesteps / total)
        states = self._progress.next_states
        if states is not None:  # with the pieces that the pipelines have now
            states = {**self.get_connector_states(), "before_batch": states["before_batch"]}
        found = {}
        for index in self.pool.indices:
            begin, end = self._bounds[index]
            size: dict[str, Any] = {
                "weights": self._weights,
                "blueprint": self._blueprint,
                "num_timesteps": None if steps is None else steps * (end - begin),
                "num_episodes": end - begin if steps is None else None,
            }
            first = SampleRequest(
                **size,
                connector_states=states,
                restarts_episodes=self._progress.restarts_episodes,
                after_episodes=self._progress.after_episodes.get(index, ()),
                begins_iteration=self._progress.begins_iteration,
            )
            found[index] = [first, *[SampleRequest(**size)] * (times - 1)]
        return found

    def _keep(self, index: int, saved: SavedState) -> None:
        """Keeps the state that a replacement continues from."""
        self._running.pop(index, None)
        self._progress.kept[index] = _Kept(saved, self._blueprint)

    def _refresh(self) -> None:
        """Lets the env runners follow changes of the run at once, so that the kept states show them."""
        outdated = [
            index
            for index in range(len(self.num_envs))
            if index not in self.pool.lost
            if self._progress.restarts_episodes or self._version_of(index) != self._blueprint.version
        ]
        if outdated:
            call = Call("get_state", (self._blueprint, self._progress.restarts_episodes))
            self.pool.run({index: [call] for index in outdated}, lambda i, _, reply: self._keep(i, reply.value))
        self._progress.restarts_episodes = self._has_failed = False

    def _version_of(self, index: int) -> int | None:
        return self._progress.kept[index].blueprint.version if index in self._progress.kept else None

    def _fetch(self, fragment: Fragment) -> list[Any]:
        payload = fragment.payload
        return unpickled(payload if isinstance(payload, bytes) else self._cluster.ray.get(payload))

    def _note(self, replies: Sequence[SampleReply]) -> None:
        """Adds the counts and the finished episodes of one sample, in the order of one env runner."""
        finished = [iter(reply.finished) for reply in replies]
        for runner, place in merged_order([reply.fragment.places for reply in replies]):
            number, vector_step = replies[runner].fragment.places[place]
            self._progress.uncredited_rewards[number] += replies[runner].uncredited[place]
            if vector_step is not None:
                self._progress.finished.append(next(finished[runner]))
        self._progress.counts += [reply.counts for reply in replies]

    def _note_times(self, times: Sequence[SamplingTimes], num_runners: int, seconds: float) -> None:
        """Adds the mean durations of the env runners, and the duration in this process."""
        for name in ("env_step", "env_reset", "rlmodule_inference", "env_to_module", "module_to_env"):
            total = sum(getattr(own, name) for own in times) / max(1, num_runners)
            setattr(self._times, name, getattr(self._times, name) + total)
        self._times.sample += seconds

    def _merge(self, replies: Sequence[SampleReply]) -> None:
        """Merges the metrics and the states of the connector pieces into those of this process."""
        for name, logger in self._loggers().items():
            logger.set_state(merged_metrics([reply.metrics[name] for reply in replies]))
        states = [reply.connector_states for reply in replies if reply.connector_states is not None]
        if not states:
            return
        if not self._merges_states:
            self.env_to_module.set_state(states[0]["env_to_module"])
            self.module_to_env.set_state(states[0]["module_to_env"])
            return
        for name, pipeline in (("env_to_module", self.env_to_module), ("module_to_env", self.module_to_env)):
            pipeline.set_state(pipeline.merge_states([state[name] for state in states]))
        before = [state["before_batch"]["pieces"] for state in states if state["before_batch"] is not None]
        self._progress.next_states = known_states(self.get_connector_states())
        if before and self._progress.next_states is not None:
            self._progress.next_states["before_batch"] = {"pieces": self.env_to_module.merge_states(before)}

    def foreach_env_runner(self, func: Callable[[Any], Any]) -> list[Any]:
        if self._for_evaluation:
            raise ConfigError(
                "foreach_env_runner: the env runners for evaluations exist only while an evaluation plays. Call it of "
                "algo.env_runner_group, or use callbacks."
            )
        self._refresh()
        call = Call("apply", (pickled_function(func, "foreach_env_runner"),))
        replies = self.pool.run({index: [call] for index in self.pool.indices})
        return [received_result(own[0].value, "foreach_env_runner") for _, own in sorted(replies.items())]

    # Evaluation.

    def begin_playing(
        self, num_episodes: int, num_envs: int, **arguments: Any
    ) -> Callable[[Callable[[int], bool]], dict[str, Any]]:
        """Lets the env runners play episodes in sub-environments that are made for them, and does not wait.

        Args:
            num_episodes: The number of episodes of all env runners.
            num_envs: The number of sub-environments of all env runners.
            **arguments: Other arguments of ``PlayRequest``.

        Returns:
            A function that waits, and returns the results of ``EnvRunner.get_metrics``. While it waits, it calls its
            argument several times in a second with the number of finished episodes. If that returns True, playing
            stops, as with ``is_enough`` of ``EnvRunner.sample``.
        """
        quotas, indices = shares(num_envs, num_episodes), self.pool.indices
        ends = [num_envs * (place + 1) // len(indices) for place in range(len(indices))]
        self.send_weights()
        states = self.get_connector_states()
        self._num_played += 1
        number, num_done, shown = self._num_played, 0, 0
        calls: dict[int, list[Call]] = {}
        for index, (begin, end) in zip(indices, pairwise([0, *ends]), strict=True):
            request = PlayRequest(
                number=number,
                weights=self._weights,
                blueprint=self._blueprint,
                connector_states=states,
                first_env_number=begin,
                num_envs=end - begin,
                num_episodes=sum(quotas[begin:end]),
                **arguments,
            )
            calls[index] = [Call("play", (request,))]

        def on_reply(_index: int, _number: int, reply: Reply) -> None:
            nonlocal num_done
            num_done += 0 if reply.value is None else len(reply.value.places)

        run = self.pool.submit(calls, on_reply)

        def results(ends: Callable[[int], bool]) -> dict[str, Any]:
            def watch(waiting: Collection[int]) -> None:
                nonlocal shown
                ongoing = sum(own.num_done for own in self.pool.progress(waiting).values())
                shown = max(shown, num_done + ongoing)  # a replacement of a lost env runner begins at 0
                if ends(shown):
                    self.pool.tell(waiting, "end_playing", number)

            try:
                found = [own for _, own in sorted(self._all_played(calls, run.result(watch), watch).items())]
            except BaseException:
                self.abandon_playing()
                raise
            return _played([own for own in found if own is not None], num_episodes, num_envs)

        return results

    def abandon_playing(self) -> None:
        """Ends the episodes of ``begin_playing`` whose results are not needed."""
        self.pool.restart_later()

    def _all_played(
        self, calls: Mapping[int, Sequence[Call]], replies: Mapping[int, Sequence[Reply]], watch: Watch
    ) -> dict[int, PlayReply | None]:
        """Returns the reply to each call, of which others make those of env runners that were lost for good."""
        found = {index: own[0].value for index, own in replies.items()}
        while missing := [index for index in calls if index not in found]:
            helpers = dict(zip(self.pool.indices, missing, strict=False))
            repeated = {helper: calls[index] for helper, index in helpers.items()}
            for helper, own in self.pool.run(repeated, watch=watch).items():
                found[helpers[helper]] = own[0].value
        return found

    # Metrics since the last call.

    def take_finished(self) -> list[EpisodeSummary]:
        finished, self._progress.finished = self._progress.finished, []
        return finished

    def take_counts(self) -> dict[str, Any]:
        counts, self._progress.counts = self._progress.counts, []
        uncredited, self._progress.uncredited_rewards = self._progress.uncredited_rewards, [0.0] * sum(self.num_envs)
        self._progress.begins_iteration = True
        return {**summed(counts), "uncredited_reward": sum(uncredited)}

    def take_times(self) -> SamplingTimes:
        times, self._times = self._times, SamplingTimes()
        return times

    def why_episodes_are_not_kept(self) -> str:
        if self.pool.lost:
            lost = ", ".join(map(self._name_of, sorted(self.pool.lost)))
            return f"the run continues without {lost}, which was lost with its ongoing episodes"
        if self._progress.restarts_episodes:
            return ""
        return next((why for kept in self._progress.kept.values() if (why := kept.saved.why_not_kept)), "")

    # For checkpoints.

    def get_state(self) -> EnvRunnerState:
        """Returns the state that one env runner with all sub-environments would have.

        Raises:
            EpisodeError: If custom data of an episode cannot be saved.
        """
        self._refresh()
        kept = [self._progress.kept[index].saved for index in range(len(self.num_envs))]
        why_not_saved = next((own.why_not_saved for own in kept if own.why_not_saved), "")
        if why_not_saved:
            raise EpisodeError(why_not_saved)
        states: list[EnvRunnerState] = [unpickled(own.state) for own in kept]
        if self.pool.lost:  # the states of lost env runners are older, and may lack changes of the run
            states = [state.without_episodes() for state in states]
        state = EnvRunnerState.merged(states)
        # All env runners get the pieces of this process with the next sample. If each continues with its own, these
        # are those of the first one.
        batch, coming = state.forward_batch, self._progress.next_states
        if batch is not None and coming is not None and coming["before_batch"] is not None:
            batch = replace(batch, pieces=coming["before_batch"]["pieces"])
        return replace(
            state,
            env_to_module=self.env_to_module.get_state(),
            module_to_env=self.module_to_env.get_state(),
            forward_batch=batch,
            metrics={name: logger.get_state() for name, logger in self.metrics.items()},
            callback_metrics=self.callback_metrics.get_state(),
        )

    def set_state(self, state: EnvRunnerState, new_episodes: bool = False) -> None:
        """Restores the state of one env runner with all sub-environments: each env runner gets its part."""
        parts = state.divided(self.num_envs)
        saved = [SavedState(pickled(part), "", "", part.num_env_steps, part.num_agent_steps) for part in parts]
        calls = {
            index: [Call("set_state", (self._blueprint, own.state, new_episodes))] for index, own in enumerate(saved)
        }
        self.pool.run(calls, lambda index, _, reply: self._keep(index, reply.value))
        for index in self.pool.lost:
            self._keep(index, saved[index])
        self.env_to_module.set_state(state.env_to_module)
        self.module_to_env.set_state(state.module_to_env)
        for name, logger in self.metrics.items():
            logger.set_state(state.metrics[name])
        self.callback_metrics.set_state(state.callback_metrics)
        self._progress.env_runners_follow()
        self._has_failed = self._fails_again = False
        self.take_counts()
        self.take_finished()
        self.take_times()

    def stop(self) -> None:
        self.pool.close()


def summed(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the sums of counts of like keys, which may be in nested dicts."""
    total: dict[str, Any] = {}
    for own in counts:
        for name, value in own.items():
            if isinstance(value, Mapping):
                total[name] = summed([total.get(name, {}), value])
            else:
                total[name] = total.get(name, 0) + value
    return total


def _played(replies: Sequence[PlayReply], num_episodes: int, num_envs: int) -> dict[str, Any]:
    """Returns the results of an evaluation by several env runners.

    If it ended early, the first episodes of each sub-environment count, the same number from each.
    """
    order, no_episode = merged_order([reply.places for reply in replies]), cast(Any, None)
    done = [DoneEpisode(no_episode, replies[r].places[at].env_number, replies[r].finished[at]) for r, at in order]
    if len(done) < num_episodes:
        done = first_rounds(done, num_envs)
    loggers = {}
    for name in replies[0].metrics:
        loggers[name] = MetricsLogger()
        loggers[name].set_state(merged_metrics([reply.metrics[name] for reply in replies]))
    found = summarize([own.summary for own in done]) | summed([reply.counts for reply in replies])
    of_callbacks = loggers.pop("callbacks")
    return with_logged(found, of_callbacks) | by_pipeline(reduced(loggers))


def _arrays(state: Any) -> Any:
    """Returns a tree with arrays in place of tensors, which Ray stores without copying them again."""
    return tree_map(lambda leaf: leaf.detach().cpu().numpy() if hasattr(leaf, "detach") else leaf, state)
