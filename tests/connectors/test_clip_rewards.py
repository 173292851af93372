import pytest

from marl_connectors import ClipRewards, ConfigError, PPOConfig


@pytest.mark.parametrize(
    ("clip_rewards", "expected"),
    [(True, [-1.0, 0.0, 1.0, 1.0]), (2.5, [-2.5, 0.0, 0.5, 2.5]), (4, [-3.0, 0.0, 0.5, 4.0])],
)
def test_items_are_clipped_by_sign_or_bound(clip_rewards, expected):
    batch = {"rewards": {("e",): [-3.0, 0.0, 0.5, 7.0]}}
    ClipRewards(clip_rewards=clip_rewards)(rl_module=None, batch=batch, episodes=[])
    assert [float(r) for r in batch["rewards"]["e",]] == expected


def test_the_loss_sees_clipped_rewards_and_the_episodes_keep_theirs():
    config = PPOConfig().environment("CartPole-v1", clip_rewards=0.25).training(train_batch_size_per_learner=64)
    algo = config.build_algo()
    episodes = algo.env_runner.sample(num_timesteps=64)
    batch = algo.learner.make_batch(episodes)
    assert set(batch.groups[0]["rewards"].tolist()) == {0.25}
    assert {float(r) for e in episodes for r in e.get_rewards()} == {1.0}


@pytest.mark.parametrize("value", [0, -1.0, "yes"])
def test_a_bound_that_is_none_is_an_error(value):
    with pytest.raises(ConfigError, match=r"(?s)ClipRewards.*clip_rewards"):
        ClipRewards(clip_rewards=value)
    with pytest.raises(ConfigError, match="clip_rewards"):
        PPOConfig().environment("CartPole-v1", clip_rewards=value)
