"""The names of the columns in which trajectories and batches are kept."""

from __future__ import annotations

from typing import Final


class Columns:
    """Column names, the same in episodes, batches and module outputs.

    Shapes below use ``B`` for the rows of one module's batch.
    """

    OBS: Final = "obs"
    """``[B, ...]`` what the agent saw before it acted."""
    INFOS: Final = "infos"
    """One dict for each row, as the environment returned it with the observation."""
    ACTIONS: Final = "actions"
    """``[B, ...]`` the actions that the module chose, in the module's own range."""
    ACTIONS_FOR_ENV: Final = "actions_for_env"
    """``[B, ...]`` the actions that the environment got, if they differ from ``ACTIONS``."""
    REWARDS: Final = "rewards"
    """``[B]`` the total reward that the agent got for that action."""
    TERMINATEDS: Final = "terminateds"
    """``[B]`` True where the next state has no value."""
    TRUNCATEDS: Final = "truncateds"
    """``[B]`` True where the episode was stopped although the next state has a value."""
    NEXT_OBS: Final = "new_obs"
    """``[B, ...]`` what the agent saw after it acted."""

    EPS_ID: Final = "eps_id"
    AGENT_ID: Final = "agent_id"
    MODULE_ID: Final = "module_id"
    T: Final = "t"
    """``[B]`` the environment step at which the row was observed."""

    ACTION_DIST_INPUTS: Final = "action_dist_inputs"
    """``[B, n]`` parameters of the action distribution, such as logits."""
    ACTION_MASK: Final = "action_mask"
    """``[B, n]`` bool, a number for each value of each choice, False for those that the agent must not choose; a choice
    without any True is free."""
    ACTION_LOGP: Final = "action_logp"
    """``[B]`` log-probability of the action when it was taken."""
    ACTION_PROB: Final = "action_prob"
    EMBEDDINGS: Final = "embeddings"
    STATE_IN: Final = "state_in"
    STATE_OUT: Final = "state_out"

    ENV_STATE: Final = "env_state"
    """``[B, ...]`` what the environment's ``state()`` was when the row was observed, where a critic sees it."""
    CRITIC_OBS: Final = "critic_obs"
    """``[B, n]`` what a centralised critic judges by, in train batches only."""
    VF_PREDS: Final = "vf_preds"
    """``[B]`` the value function's estimate for ``OBS``."""
    ADVANTAGES: Final = "advantages"
    VALUE_TARGETS: Final = "value_targets"
    INTRINSIC_REWARDS: Final = "intrinsic_rewards"
    """``[B]`` rewards of curiosity, for pieces and losses that compute them."""
    RETURNS_TO_GO: Final = "returns_to_go"
    """``[B]`` discounted sum of this reward and all later ones of the episode."""
    LOSS_MASK: Final = "loss_mask"
    SEQ_LENS: Final = "seq_lens"
