"""Action masks are honoured by default on every way through the library: Python, command line, check and exports.

The environments raise on forbidden actions. Their action spaces, and the places of masks, are drawn at random.
"""

from __future__ import annotations

import json
import pickle
import re

import pytest

from helpers.envs.masked_envs import AloneWithMasks, RandomMasks, Turns
from helpers.envs.scripted_envs import small_config
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Algorithm, EnvError, FlattenObservations, FrameStacking, MeanStdFilter, load_policy
from marl_connectors.cli.main import main
from marl_connectors.errors import ConnectorError

ENVS = "helpers.envs.masked_envs:"
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
TURNS = [{"mask": [0, 0, 1]}, {"mask": [0, 1, 0], "in_info": True}]


def some_pieces(env):
    return [FlattenObservations(), MeanStdFilter(), FrameStacking(num_frames=2)]


def frames(env):
    return [FrameStacking(num_frames=2, as_learner_connector=True)]


def act_alone(policy, env, *, episodes=3, **explore):
    """Plays a Gymnasium environment."""
    for seed in range(episodes):
        observation, info = env.reset(seed=seed)
        policy.reset()
        over = False
        while not over:
            action = policy(observation, info=info, **explore)
            observation, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated


def act_together(policy, env, *, episodes=3, **explore):
    """Plays a parallel environment."""
    for seed in range(episodes):
        observations, infos = env.reset(seed=seed)
        policy.reset()
        while env.agents:
            own = {agent: observations[agent] for agent in env.agents}
            told = {agent: infos[agent] for agent in env.agents}
            observations, _, _, _, infos = env.step(policy.actions(own, infos=told, **explore))


def act_in_turns(policy, env, *, episodes=3, **explore):
    """Plays an AEC environment."""
    for seed in range(episodes):
        env.reset(seed=seed)
        policy.reset()
        for agent in env.agent_iter():
            observation, _, terminated, truncated, info = env.last()
            over = terminated or truncated
            env.step(None if over else policy(observation, agent, info=info, **explore))


KINDS = {
    "parallel": (RandomMasks, act_together),
    "one agent": (AloneWithMasks, act_alone),
    "in turns": (Turns, act_in_turns),
}


def run_of(kind, number, *, model=(), with_pieces=False):
    """Returns a config for one of the random environments of a kind."""
    env_class, _ = KINDS[kind]
    given = TURNS[number % 2] if kind == "in turns" else {"case": number}
    config = small_config(env_class, env_config=given)
    config.env_runners(num_envs_per_env_runner=2, explore=True)
    if model:
        config.rl_module(model_config={"fcnet_hiddens": [4], **dict(model)})
    if kind != "one agent":
        config.multi_agent(policies="independent")
    if with_pieces:
        config.env_runners(env_to_module_connector=some_pieces).learners(learner_connector=frames)
    return config, given


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [{}, LSTM], ids=["feed-forward", "LSTM"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(2))
def test_no_forbidden_action_is_taken_in_training_evaluation_and_inference(kind, number, model, tmp_path):
    env_class, play = KINDS[kind]
    config, given = run_of(kind, number, model=model, with_pieces=bool(number))
    with config.build_algo() as algo:
        for _ in range(2):
            algo.train()
        for explore in (False, True):
            algo.evaluate(num_episodes=2, explore=explore)
        algo.random_play(num_episodes=2)
        path = algo.save_to_path(tmp_path / "run")
    for explore in (False, True):
        play(load_policy(path), env_class(**given), explore=explore)
    with Algorithm.from_checkpoint(path) as restored:
        restored.train()


@pytest.mark.slow
@pytest.mark.parametrize("model", [{}, LSTM], ids=["feed-forward", "LSTM"])
@pytest.mark.parametrize("kind", KINDS)
def test_exported_programs_take_no_forbidden_action(kind, model, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    from marl_connectors import OnnxPolicy

    env_class, play = KINDS[kind]
    config, given = run_of(kind, 1, model=model, with_pieces=True)
    with config.build_algo() as algo:
        algo.train()
        folder = load_policy(algo.save_to_path(tmp_path / "run")).export_onnx(tmp_path / "export")
    play(OnnxPolicy(folder), env_class(**given))


class AllFromTheStart(RandomMasks):
    """All agents are there from the reset on."""

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.agents, self.late = list(self.possible_agents), []
        return self._told(self.agents)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", [*range(4), *fresh_seeds(12)])
def test_agents_whose_masks_are_in_infos_do_not_act_without_infos(case, tmp_path):
    env = AllFromTheStart(case, most=4)
    in_infos = [agent for agent, place in env.places.items() if place == "info"]
    if in_infos and "observation" not in env.places.values():
        in_infos = env.possible_agents  # all have choices, and nothing says which ones are masked
    config = small_config(AllFromTheStart, env_config={"case": case, "most": 4})
    with config.multi_agent(policies="independent").build_algo() as algo:
        policy = load_policy(algo.save_to_path(tmp_path / "run"))
    observations, infos = env.reset(seed=0)
    for acts in (policy, policy.session(), pickle.loads(pickle.dumps(policy))):
        for agent in set(env.possible_agents).difference(in_infos):
            acts(observations[agent], agent)
        acts.reset()
        for agent in in_infos:
            with pytest.raises(ConnectorError, match=rf"(?s)\b1\b.*\({agent}\).*'act"):
                acts(observations[agent], agent)
        if in_infos:
            names = re.escape(f"{len(in_infos)} agent{'s' * (len(in_infos) > 1)} ({', '.join(in_infos)})")
            with pytest.raises(ConnectorError, match=names):
                acts.actions(observations)
            for without in ({}, {in_infos[-1]: None}, {a: infos[a] for a in infos if a != in_infos[-1]}):
                with pytest.raises(ConnectorError, match=f"{in_infos[-1]}"):
                    acts.actions(observations, infos=without)
        acts.actions(observations, infos=infos)
        acts.actions(observations, infos={agent: {} for agent in infos})  # as the environment says that all is allowed


@pytest.mark.slow
def test_exported_programs_refuse_the_same_calls_without_infos(tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    from marl_connectors import OnnxPolicy

    case = next(c for c in range(99) if {"observation", "info", "none"} == set(AllFromTheStart(c).places.values()))
    config = small_config(AllFromTheStart, env_config={"case": case})
    with config.multi_agent(policies="independent").build_algo() as algo:
        path = algo.save_to_path(tmp_path / "run")
    acts, env = OnnxPolicy(load_policy(path).export_onnx(tmp_path / "export")), AllFromTheStart(case)
    observations, _ = env.reset(seed=0)
    for agent, place in env.places.items():
        if place == "info":
            with pytest.raises(ValueError, match=f"(?s)'{agent}'.*'action_mask'"):
                acts(observations[agent], agent)
            for infos in (None, {}, {agent: None}):
                with pytest.raises(ValueError, match=f"'{agent}'"):
                    acts.actions({agent: observations[agent]}, infos=infos)
            assert agent in acts.actions({agent: observations[agent]}, infos={agent: {}})
        else:
            acts(observations[agent], agent)


def cli_words(kind, number):
    given = TURNS[number % 2] if kind == "in turns" else {"case": number}
    settings = [word for key, value in given.items() for word in ("--env-config", f"{key}={json.dumps(value)}")]
    return [f"{ENVS}{KINDS[kind][0].__name__}", *settings]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(2))
def test_the_command_line_takes_no_forbidden_action(kind, number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [*cli_words(kind, number), "--steps", "60", "--num-envs", "2", "--hidden", "4", "--eval-episodes", "2"]
    words += ["--set", "train_batch_size_per_learner=30", "--set", "num_epochs=1", "--no-video", "--out", "run"]
    if kind != "one agent":
        words += ["--policies", "independent"]
    assert main(["train", *words, "--model", "use_lstm=true", "--model", "max_seq_len=4"]) == 0
    assert "are applied" in capsys.readouterr().out.splitlines()[0]
    for explore in ([], ["--explore"]):
        assert main(["evaluate", "run", "--episodes", "2", *explore]) == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(4))
def test_check_plays_by_the_masks(kind, number, capsys):
    assert main(["check", *cli_words(kind, number), "--no-conformance"]) == 0
    has_masks = kind != "parallel" or set(RandomMasks(number).places.values()) != {"none"}
    assert ("they were obeyed" in capsys.readouterr().out) == has_masks


@pytest.mark.parametrize("kind", KINDS)
def test_without_masks_these_environments_raise(kind):
    """So that the tests above can fail."""
    for number in range(2):
        config, _ = run_of(kind, number)
        with config.environment(action_mask_key=None).build_algo() as algo:
            assert "are ignored" in str(algo.masking)
            with pytest.raises(EnvError, match=r"forbids|illegal"):
                algo.env_runner.sample(num_timesteps=300)
