"""Every example runs, prints what its first lines say, and (in the slow tests) learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_example_has_a_test():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "shared_policies",
        "independent_policies",
        "custom_mapping_function",
        "single_agent_cartpole",
        "custom_connector",
        "shared_encoder",
        "self_play",
        "league",
        "offline_data",
        "imitation",
        "value_decomposition",
        "continuous_actions",
        "own_environment",
        "lstm_turn_based",
        "curriculum",
        "optuna_search",
        "wandb_run",
    }


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_asks_a_question_and_says_what_it_prints(path):
    first_lines = path.read_text(encoding="utf-8").split('"""')[1]
    assert first_lines.partition("\n")[0].endswith("?")
    assert "prints" in first_lines.lower() and "seconds" in first_lines


@pytest.mark.slow
def test_shared_policies_prints_the_return_of_the_one_module(example, capsys):
    pytest.importorskip("mpe2")
    example("shared_policies").main(iterations=1, eval_episodes=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("   6,000 agent steps, return: default_policy -")
    assert lines[-1].startswith("Without exploration: -") and "Random play: -" in lines[-1]


def test_shared_encoder_prints_the_return_and_the_sizes(example, capsys):
    example("shared_encoder").main(iterations=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("   400 steps, return of an agent: ")
    assert lines[1] == "The shared encoder has 192 parameters, each agent's heads have 198."


@pytest.mark.slow
def test_independent_policies_prints_the_return_of_each_agents_module(example, capsys):
    pytest.importorskip("mpe2")
    at_random, trained = example("independent_policies").main(iterations=1, eval_episodes=2)
    assert capsys.readouterr().out.startswith(
        "Modules: agent_0, agent_1, agent_2\n   6,000 agent steps, return: agent_0 -"
    )
    assert list(at_random) == list(trained) == ["agent_0", "agent_1", "agent_2"]


@pytest.mark.slow
def test_the_custom_mapping_gives_each_agent_its_turn_as_the_scout(example, capsys):
    pytest.importorskip("mpe2")
    means, counts = example("custom_mapping_function").main(iterations=1)
    assert set(means) == {"scout", "team"}
    assert set(counts) == {"agent_0", "agent_1", "agent_2"}
    assert sum(counts.values()) == 80  # one scout an episode, 2,000 env steps in episodes of 25
    assert "Scout of so many episodes: agent_0 " in capsys.readouterr().out


def test_the_loaded_cartpole_checkpoint_plays_as_the_one_that_was_saved(example, capsys):
    trained, again = example("single_agent_cartpole").main(iterations=1, eval_episodes=2)
    assert trained == again > 0
    assert "The loaded checkpoint: " in capsys.readouterr().out


def test_the_custom_connector_prints_both_returns(example, capsys):
    without, with_piece = example("custom_connector").main(iterations=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"Return without the piece: {without:.1f} of 10",
        f"Return with the piece:    {with_piece:.1f} of 10",
    ]


@pytest.mark.slow
def test_self_play_adds_opponents_and_prints_who_wins(example, capsys):
    against_random, against_perfect, num_opponents = example("self_play").main(iterations=3, games=4)
    lines = capsys.readouterr().out.splitlines()
    assert num_opponents == len(lines) - 1 >= 2
    assert re.fullmatch(r"iteration   3: main wins \d\d%, and main_v1 joins its opponents", lines[0])
    assert lines[-2] == f"Wins against random moves: {against_random:.0%}"
    assert lines[-1] == f"Wins against perfect play when it begins: {against_perfect:.0%}"


@pytest.mark.slow
def test_the_league_grows_and_prints_ratings(example, capsys):
    module = example("league")
    module.GrowLeague.every = 1
    module_ids, wins, ratings = module.main(iterations=1, games=6)
    assert module_ids == ["main_0", "exploiter_0", "main_1", "exploiter_1"]
    assert wins.shape == (4, 4) and abs(wins + wins.T - 1).max() < 1e-12
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[1].startswith(f"main_0      {ratings[0]:>6.0f}")


def test_elo_ratings_are_those_that_the_wins_are_likely_by(example):
    elo = example("league").elo
    strong, weak = elo(np.array([[0.5, 10 / 11], [1 / 11, 0.5]]), games=10**9)
    assert abs(strong - weak - 400) < 1e-3, "400 points are 10 games won for each one lost"


def test_the_own_environment_has_no_errors_and_its_returns_are_printed(example, capsys):
    trained, at_random = example("own_environment").main(iterations=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Meeting: parallel, 2 agents. 0 errors, 0 warnings, 2 notes."
    assert lines[-1] == f"Return of a walker without exploration: {trained:.2f}. Random play: {at_random:.2f}."


def test_the_lstm_prints_both_returns(example, capsys):
    without, with_lstm = example("lstm_turn_based").main(iterations=1)
    printed = f"Return of a player: {without:.2f} without an LSTM, {with_lstm:.2f} with one, of 2\n"
    assert capsys.readouterr().out == printed


def test_a_wheel_is_added_only_in_the_curriculum(example, capsys):
    (_, wheels_without), (_, wheels) = example("curriculum").main(iterations=4)
    lines = capsys.readouterr().out.splitlines()
    assert wheels_without == 12 and wheels > 1
    assert lines[0].startswith("Beginning with 12, ending with 12 wheels: opened in ")
    assert re.fullmatch(r"iteration   \d: 2 wheels", lines[1])
    assert lines[-1].startswith(f"Beginning with 1, ending with {wheels} wheels: opened in ")


def test_the_search_prints_how_its_trials_end(example, capsys):
    pytest.importorskip("optuna")
    study = example("optuna_search").main(trials=2, iterations=1)
    lines = capsys.readouterr().out.splitlines()
    assert all("complete after 1 iterations, return " in line for line in lines[:2])
    assert lines[2].startswith(f"Best: lr {study.best_params['lr']:.5f}, entropy_coeff ")


def test_a_run_tracked_by_wandb_is_continued_under_its_id(example, tmp_path, monkeypatch, capsys):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_id, written = example("wandb_run").main(tmp_path, iterations=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"Tracked run: {run_id}"
    assert len(written) >= 1 and all(path.name.endswith(run_id) for path in written)
    assert lines[2:] == [f"wandb sync {path}" for path in written]


# What the examples promise, in full length.


@pytest.mark.slow
def test_shared_policies_learn(example):
    pytest.importorskip("mpe2")
    at_random, trained = example("shared_policies").main()
    assert at_random < -25 and trained > -20


@pytest.mark.slow
def test_independent_policies_learn(example):
    pytest.importorskip("mpe2")
    at_random, trained = example("independent_policies").main()
    assert all(value < -25 for value in at_random.values())
    assert all(value > -22.5 for value in trained.values())


@pytest.mark.slow
def test_both_modules_of_the_custom_mapping_learn(example):
    pytest.importorskip("mpe2")
    means, _ = example("custom_mapping_function").main()
    assert all(value > -22.5 for value in means.values())


@pytest.mark.slow
def test_cartpole_learns(example):
    trained, again = example("single_agent_cartpole").main()
    assert trained == again > 300


@pytest.mark.slow
def test_only_with_the_piece_the_agents_find_their_numbers(example):
    without, with_piece = example("custom_connector").main()
    assert without < 3.5 and with_piece > 9


@pytest.mark.slow
def test_self_play_wins_against_random_and_perfect_play(example):
    against_random, against_perfect, num_opponents = example("self_play").main()
    assert against_random > 0.9 and against_perfect == 1.0
    assert num_opponents > 5


@pytest.mark.slow
def test_the_last_of_the_league_are_the_strongest(example):
    module_ids, wins, ratings = example("league").main()
    rating = dict(zip(module_ids, ratings, strict=True))
    assert rating["main_24"] > rating["main_12"] + 150 > rating["main_0"] + 300
    assert wins[module_ids.index("main_24"), module_ids.index("main_0")] > 0.9


@pytest.mark.slow
def test_the_walkers_of_the_own_environment_meet(example):
    trained, at_random = example("own_environment").main()
    assert trained > -0.3 and at_random < -1


@pytest.mark.slow
def test_only_with_an_lstm_the_players_remember_their_cues(example):
    without, with_lstm = example("lstm_turn_based").main()
    assert without < 1 and with_lstm > 1.9


@pytest.mark.slow
def test_only_with_the_curriculum_the_lock_is_opened(example):
    (without, _), (with_curriculum, wheels) = example("curriculum").main()
    assert without == 0 and with_curriculum > 0.8 and wheels == 12


@pytest.mark.slow
def test_the_search_stops_bad_trials_and_finds_settings_that_learn(example):
    pytest.importorskip("optuna")
    study = example("optuna_search").main()
    states = [trial.state.name for trial in study.trials]
    assert len(states) == 10 and set(states) == {"COMPLETE", "PRUNED"}
    assert study.best_value > 250


@pytest.mark.slow
def test_an_example_runs_as_a_script(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "custom_connector.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 10") == 2


@pytest.mark.slow
def test_imitation_prints_the_returns_of_the_policy_and_its_clone(example, tmp_path, capsys):
    returns = example("imitation").main(str(tmp_path / "data"))
    assert returns["recorded policy"] > 4 * returns["random play"] * 0.75
    assert returns["clone"] > 0.9 * returns["recorded policy"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["agent_0", "agent_1", "agent_2", "random play"]


@pytest.mark.slow
def test_offline_data_prints_that_both_runs_have_learned_the_same(example, tmp_path, capsys):
    pytest.importorskip("mpe2")
    example("offline_data").main(str(tmp_path / "data"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The same parameters from the files: True"
    assert len([line for line in lines if line.startswith("a sample: ")]) == 3


@pytest.mark.slow
def test_value_decomposition_prints_what_each_algorithm_earns(example, capsys):
    found = example("value_decomposition").main(iterations=1)
    assert set(found.values()) <= {0.0, 1.0, 7.0, 8.0}
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == list(found)


@pytest.mark.learning
def test_value_decomposition_shows_that_only_qmix_finds_the_best(example):
    assert list(example("value_decomposition").main().values()) == [7.0, 7.0, 8.0]
