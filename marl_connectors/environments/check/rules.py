"""The rules of ``check_env``: those of a run, and what only a closer look finds."""

from __future__ import annotations

import functools

from marl_connectors.environments.rules import violations
from marl_connectors.environments.rules.violations import LEVELS, Rule

_ERRORS = {
    "observation-shared": (
        "Give each agent an array of its own (observation.copy()), also if all agents see the same."
    ),
    "reward-credit": (
        "In step(): self._cumulative_rewards[agent] = 0 for the agent that acts, self._clear_rewards() before rewards "
        "are set, and self._accumulate_rewards() once after that."
    ),
    "reward-to-the-dead": "Set an agent's reward before its last turn, step(None), is over.",
    "mask-space": "Correct the space. If it is not a mask, train with action_mask_key=None (--action-mask-key none).",
    "mask-length": "A mask has a 0 or 1 for each action.",
    "mask-values": "A mask has a 0 or 1 for each action.",
    "space-unsupported": "Use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple spaces of them.",
    "space-bounds": "Correct the bounds, or give -inf and inf.",
    "space-changed": (
        "Networks are built once, so a space must contain all values that can occur, and be the same in all episodes."
    ),
    "raised": "Fix the environment.",
    "hangs": "Find out what it waits for. If it is only slow, allow more time (call_timeout=, --call-timeout).",
    "unexpected": "Check the data that reset() and step() return.",
    "seed": (
        "Draw everything random from one generator that reset(seed=...) makes, and reset everything else, too. "
        "Otherwise runs cannot be repeated, and a checkpoint cannot be resumed in the middle of an episode."
    ),
}
_WARNINGS = {
    "no-final-observation": (
        "Return the observation of the state in which the agent was stopped. Until then, the previous one is used."
    ),
    "reward-missing": "Return a reward for each agent that acted, also for those that end.",
    "reward-without-action": (
        "It is added to the reward of the agent's last action. Reward an agent in the steps in which it acts."
    ),
    "reward-uncredited": "It is counted as uncredited_reward. Reward an agent from its first action on.",
    "action-changed": "Copy the action first: np.clip(action, low, high) instead of action *= ...",
    "ended-but-stays": "Remove it from env.agents in that step.",
    "no-last-turn": "Only flag it; AECEnv._was_dead_step(), called from step(None), removes it.",
    "flag-of-stranger": (
        "Flag only agents that take part. An agent that is flagged in the step in which it joins does not take part."
    ),
    "both-flags": "At a time limit, set truncations only, so that the value of the last state is not lost.",
    "agent-not-possible": "List all agents that can ever appear, so that modules and spaces are known from the start.",
    "no-end": (
        "Allow more (max_steps=, --max-steps). Add a time limit if episodes never end: returns are reported at ends."
    ),
    "last-observation-is-first": (
        "Return the state in which an episode was stopped, because its value is estimated. Do not reset in step()."
    ),
    "seed-leak": (
        "Create everything again at a reset, also objects such as physics worlds and sets of sprites. Runs learn as "
        "well, but a checkpoint cannot be resumed exactly in the middle of an episode."
    ),
    "seed-slightly-off": (
        "Physics engines that are not created again at each reset cause this. Runs learn as well, but they are not "
        "repeatable to the last digit, and cannot be resumed exactly in the middle of an episode."
    ),
    "seed-infos": "If that is a time measured by a clock, nothing is wrong. Masks or rewards in infos must repeat.",
    "reset-repeats": "Without a seed, continue with the generator as it is. Runs of this library always pass a seed.",
    "global-random-state": (
        "Use a generator of the environment's own (gymnasium.utils.seeding.np_random). Sub-environments that "
        "are stepped in turn change one another's draws, so that a run is not repeatable."
    ),
    "state-raises": "Fix the environment.",
    "render": "Videos need rgb_array frames.",
    "render-raises": "Videos need rgb_array.",
    "close-raises": "close() must work, also after the end of an episode.",
    "conformance": (
        "Look at what the test requires. Everything that training depends on is checked here too, as an error."
    ),
}
_NOTES = {
    "float64": "With float32, it takes half the memory and needs no conversion.",
    "python-data": "It is converted at each step, which is slow for more than a few numbers.",
    "observation-reused": (
        "Nothing to do if each sub-environment has an object of its own, because it is copied. Sub-environments that "
        "write to the same object, such as a class attribute, get each other's data. Code that stores it must copy it."
    ),
    "info-reused": "Nothing to do, because it is copied. Code that stores it must copy it too.",
    "read-only-arrays": (
        "Nothing to do, because they are copied. Code that changes observations in place has to copy them first."
    ),
    "mask-dtype": "Gymnasium's space.sample(mask) takes int8 only.",
    "flag-missing": "Return both flags for each agent that acted. A missing flag counts as False.",
    "agent-returns": "Nothing to do, because it begins a trajectory of its own. PettingZoo requires a new name for it.",
    "agents-never-seen": "Play more episodes (episodes=, --episodes) to check them too.",
    "no-possible-agents": (
        "A run takes the agents of the first reset. For agents that join later, name modules in the config."
    ),
    "space-rebuilt": "Keep the spaces in a dict: seeding such a space does nothing, and building it takes time.",
    "warns": "Check whether it concerns training.",
    "out-of-time": "Give more time (max_seconds=, --max-seconds), or fewer episodes and steps.",
    "ends-always-terminated": (
        "If this is a time limit, it must be a truncation, because no rewards are expected after a termination."
    ),
    "step-after-end": "Nothing to do, because this library resets after the end. Other libraries may step once more.",
    "seed-without-effect": (
        "This is right for a game without chance. Otherwise reset() ignores its seed, and all sub-environments play "
        "the same episodes."
    ),
    "no-state": "A centralised critic then has to be built from the observations of all agents.",
    "no-render-modes": "List them, [] if there are none. Videos need rgb_array.",
    "no-metadata": "Give it at least name and render_modes.",
    "conformance-not-run": "Nothing to do.",
}
RULES = violations.RULES | {
    kind: Rule(level, advice)
    for level, advices in zip(LEVELS, (_ERRORS, _WARNINGS, _NOTES), strict=True)
    for kind, advice in advices.items()
}
"""All rules by kind. The names of the kinds do not change between versions."""

violation = functools.partial(violations.violation, rules=RULES)
"""Returns a violation of any of the rules."""
