"""Every example of a connector piece runs, prints what its first lines say, and (in the learning tests) learns."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from marl_connectors import MultiAgentEpisode, SingleAgentEpisode

EXAMPLES = Path(__file__).parents[2] / "examples" / "connectors"


def call(piece, *episodes):
    """The batch of items that a piece makes by itself."""
    return piece(rl_module=None, batch={}, episodes=list(episodes))


def test_every_example_has_a_test():
    source = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    calls = (node for node in ast.walk(source) if isinstance(node, ast.Call) and ast.unparse(node.func) == "example")
    loaded = {node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)}
    assert {f"connectors/{path.stem}" for path in EXAMPLES.glob("*.py")} == loaded | {
        f"connectors/{name}" for name in STACKING
    }


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_asks_a_question_and_says_what_it_prints(path):
    first_lines = path.read_text(encoding="utf-8").split('"""')[1]
    assert first_lines.partition("\n")[0].endswith("?")
    assert "prints" in first_lines.lower() and "seconds" in first_lines


def test_the_one_hot_preprocessor_trains_an_iteration(example, capsys):
    one_hot = example("connectors/one_hot_frozen_lake")
    episode_return, length = one_hot.main(iterations=1, eval_episodes=5)
    assert episode_return == 1.0 and length >= 2
    assert capsys.readouterr().out.startswith("   400 steps, length: ")
    algo = one_hot.make_config().build()
    assert algo.get_module().observation_space.shape == (4,)
    (episode,) = algo.env_runner.sample(num_episodes=1)
    algo.stop()
    assert episode.get_observations(0).tolist() == [1, 0, 0, 0]
    assert episode.get_observations(-1).tolist() == [0, 0, 0, 1], "every episode ends in the goal"


@pytest.mark.learning
def test_ppo_converges_on_one_hot_observations(example):
    """From the start two of three slides lead on, then one of three: 3 / 2 + 3 steps at best."""
    episode_return, length = example("connectors/one_hot_frozen_lake").main()
    assert episode_return == 1.0
    assert 4.5 - 0.7 < length < 4.5 + 0.7  # a random policy takes 8


def test_the_last_reward_is_appended_and_written_back(example, capsys):
    last_reward = example("connectors/last_reward_in_observation")
    assert last_reward.main(iterations=1, train_batch_size=128) == [0.0, 1.0, 1.0, 1.0]
    assert "has the shape (5,)" in capsys.readouterr().out
    episode = SingleAgentEpisode(
        observations=[np.zeros(2), np.ones(2)], actions=[0], rewards=[5.0], len_lookback_buffer=0
    )
    assert call(last_reward.AddLastRewardToObservations(), episode) == {}
    assert episode.get_observations(-1).tolist() == [1.0, 1.0, 5.0]


STACKING = {"stack_ten_observations": 10, "stack_four_observations": 4, "frame_stacking": 4}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", STACKING)
def test_the_learner_stacks_the_same_observations_as_the_policy_that_acted(example, capsys, name):
    """After some updates, a learner that forgets the observations before a chunk is 0.01 away."""
    shape, distance = example(f"connectors/{name}").main(iterations=4, train_batch_size=256)
    assert shape == (4 * STACKING[name],)
    assert abs(distance) < 1e-6
    assert "Distance of the learner's policy from the one that acted: 0.000000\n" in capsys.readouterr().out


def test_stacks_begin_with_zeros_and_reach_back_before_a_chunk(example):
    four = example("connectors/stack_four_observations").StackFourObservations

    def episode(lookback):
        return SingleAgentEpisode(
            observations=[np.array([t], np.float32) for t in range(1, 7)],
            actions=[0] * 5,
            rewards=[0.0] * 5,
            len_lookback_buffer=lookback,
        )

    (stacks,) = call(four(), episode(0))["obs"].values()
    assert [stack.tolist() for stack in stacks] == [[3, 4, 5, 6]]
    (stacks,) = call(four(as_learner_connector=True), episode(0))["obs"].values()
    assert [stack.tolist() for stack in stacks[:4]] == [[0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4]]
    (stacks,) = call(four(as_learner_connector=True), episode(3))["obs"].values()
    assert [stack.tolist() for stack in stacks] == [[1, 2, 3, 4], [2, 3, 4, 5]]
    ten = example("connectors/stack_ten_observations").StackLast10ObservationsInLearner
    (stacks,) = call(ten(), episode(3))["obs"].values()
    assert [stack.tolist() for stack in stacks] == [[0, 0, 0, 0, 0, 0, 1, 2, 3, 4], [0, 0, 0, 0, 0, 1, 2, 3, 4, 5]]


def test_previous_actions_and_rewards_are_appended(example, capsys):
    appended, actions = example("connectors/prev_actions_prev_rewards").main(iterations=1, train_batch_size=128)
    one_hot = [[0, 0], *([1 - action, action] for action in actions)]
    assert appended == [[*one_hot[0], 0, 0], [*one_hot[1], 0, 1], [*one_hot[2], 1, 1], [*one_hot[3], 1, 1]]
    assert "has the shape (8,)" in capsys.readouterr().out


def test_forbidden_actions_are_never_taken(example, capsys):
    without, with_piece = example("connectors/manipulate_action_logits").main(num_episodes=30)
    assert (without > 0.05).all()
    assert with_piece[0] == with_piece[3] == 0 and (with_piece[1:3] > 0.2).all()
    assert "With    the piece: left 0%" in capsys.readouterr().out


def test_visits_are_counted_and_rarely_seen_observations_pay_more(example, capsys):
    count_based = example("connectors/count_based_intrinsic_rewards")
    visits = count_based.main(iterations=1, train_batch_size=128)
    assert visits[0] == max(visits.values()) and sum(visits.values()) >= 128
    assert f"Fields seen: {len(visits)} of 16." in capsys.readouterr().out
    a, b = np.zeros(1), np.ones(1)
    episode = SingleAgentEpisode(
        observations=[a, b, a, a, b], actions=[0] * 4, rewards=[0.0, 10.0, 0.0, 20.0], len_lookback_buffer=0
    )
    call(count_based.CountBasedIntrinsicRewards(), episode)
    np.testing.assert_allclose(episode.get_rewards(), [1, 11, 1 / 2, 20 + 1 / 3], rtol=1e-6)


def test_the_default_pieces_by_hand_are_the_defaults(example, capsys):
    default, own = example("connectors/switch_defaults_off").main(train_batch_size=128)
    assert default == pytest.approx(own, rel=1e-5)
    assert "The same names: True" in capsys.readouterr().out


def test_lists_of_pieces_stand_in_order(example, capsys):
    names, counts = example("connectors/lists_of_pieces").main(iterations=1, train_batch_size=128)
    env_to_module, module_to_env, learner = names
    assert env_to_module[:2] == ["MeanStdFilter", "PrevActionsPrevRewards"]
    first = module_to_env.index("CountActions")
    assert module_to_env[first + 1] == "Other" and module_to_env.index("GetActions") < first
    assert learner[1:3] == ["ScaleRewards", "ClipRewards"]
    assert sum(counts) == 128
    assert f"Pushed left {counts[0]} times" in capsys.readouterr().out


def test_debugging_shows_tables_and_names_the_wrong_piece(example, capsys):
    tables, message = example("connectors/debugging").main(train_batch_size=64)
    assert [table.partition("\n")[0] for table in tables] == [
        "EnvToModulePipeline",
        "ModuleToEnvPipeline",
        "LearnerConnectorPipeline",
    ]
    assert "ScaleObservations" in tables[0]
    assert message.startswith("EnvToModulePipeline: ScaleObservations failed for episode ")
    assert "The first observation of the piece: (4,) float32" in capsys.readouterr().out


def pair(steps):
    """Two agents, ``steps`` steps long: one sees 10 + t, the other 20 + t; they are paid t and 3 t."""
    seen = [{"a": np.array([10.0 + t], np.float32), "b": np.array([20.0 + t], np.float32)} for t in range(steps + 1)]
    return MultiAgentEpisode(
        observations=seen,
        actions=[{"a": 0, "b": 0}] * steps,
        rewards=[{"a": float(t), "b": 3.0 * t} for t in range(steps)],
        len_lookback_buffer=0,
    )


def test_an_agent_gets_the_others_observation(example, capsys):
    share = example("connectors/share_observations")
    share.main(iterations=1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.endswith(" of 8") for line in lines)
    algo = share.make_config(lambda env: share.ShareObservation("speaker", "listener")).build()
    assert algo.get_module("speaker").observation_space.shape == (3,)
    assert algo.get_module("listener").observation_space.shape == (4,)
    episode = algo.env_runner.sample(num_episodes=1)[0]
    algo.stop()
    heard = episode.agent_episodes["listener"].get_observations()
    said = episode.agent_episodes["speaker"].get_observations()
    assert heard.shape == (9, 4)
    assert (heard[:, 1:] == said).all()


def test_team_rewards_are_mixed_with_an_agents_own(example, capsys):
    team = example("connectors/team_reward_shaping")
    team.main(iterations=1)
    assert capsys.readouterr().out.count("An agent's return with") == 2
    for share, expected in (
        (1.0, {"a": [0, 2, 4], "b": [0, 2, 4]}),
        (0.5, {"a": [0, 1.5, 3], "b": [0, 2.5, 5]}),
        (0.0, {"a": [0, 1, 2], "b": [0, 3, 6]}),
    ):
        episode = pair(steps=3)
        call(team.ShareRewards(share), episode)
        assert {agent: list(rewards) for agent, rewards in episode.get_rewards().items()} == expected


@pytest.mark.slow
def test_a_default_module_plays_a_masked_game_without_an_illegal_move(example, capsys):
    masking = example("connectors/action_masking")
    before, after = masking.main(iterations=2)
    assert 0 <= before <= 8 and 0 <= after <= 8
    out = capsys.readouterr().out
    assert "The module sees 12 numbers, and no mask.\n" in out
    assert f"After 1,600 moves, all of them legal, {after} winning moves in 8 positions.\n" in out
    env = masking.Nim()
    observations, _ = env.reset()
    assert [observations[agent]["action_mask"].tolist() for agent in env.agents] == [[1, 1, 1], [0, 0, 0]]
    for first, second in ((3, 0), (0, 3), (2, 0), (0, 1)):
        observations, *_ = env.step({"first": first, "second": second})
    assert env.stones == 1 and observations["first"]["action_mask"].tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match=r"(?s)\b2\b.*\b1\b"):
        env.step({"first": 2, "second": 0})
    assert env.step({"first": 1, "second": 0})[1] == {"first": 1.0, "second": -1.0} and env.agents == []


@pytest.mark.learning
def test_the_masked_game_is_learned(example):
    assert example("connectors/action_masking").main()[1] == 8


@pytest.mark.learning
def test_the_listener_learns_only_what_it_hears(example):
    without, with_piece = example("connectors/share_observations").main()
    assert without < 3.5 and with_piece > 7.5


@pytest.mark.learning
def test_agents_that_are_paid_as_a_team_give_their_coins_away(example):
    without, with_piece = example("connectors/team_reward_shaping").main()
    assert without < 11 and with_piece > 19


@pytest.mark.slow
def test_an_example_runs_as_a_script(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "debugging.py")], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "The wrong piece: " in done.stdout
