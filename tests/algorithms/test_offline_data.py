from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import BOX, LifeEnv, small_config
from helpers.episodes.little_chunks import chunk
from helpers.episodes.recorded import facts
from helpers.runs.clusters import spread
from helpers.runs.fake_ray import use_fake_ray
from helpers.runs.random_runs import described, differences, plain, random_config
from marl_connectors import BCConfig, EpisodeReader, EpisodeWriter, PPOConfig
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.offline_data import OfflineData
from marl_connectors.errors import ConfigError, EpisodeError, OfflineDataError


def life(**settings):
    config = small_config(LifeEnv, env_config={"die": 0.3, "join": 0.3, **settings}).debugging(seed=3)
    return config.env_runners(num_envs_per_env_runner=3, rollout_fragment_length=4)


def trained(algo, iterations):
    """The results of some iterations, and the parameters afterwards."""
    results = [algo.train() for _ in range(iterations)]
    learned = [[own["learners"], own["num_env_steps_sampled_lifetime"]] for own in results]
    return plain(learned), plain(algo.rl_module.get_state())


def recorded(folder):
    return [facts(episode) for episode in EpisodeReader(folder)]


def ids(folder):
    return [episode.id_ for episode in EpisodeReader(folder, order="in_order").sample()]


# A run that learns from what another one recorded.


def assert_learns_the_same(config, other, folder):
    recording = config.offline_data(output=folder).build_algo()
    expected = trained(recording, 3)
    recording.stop()
    if other.batch_mode == "complete_episodes":
        other.env_runners(batch_mode="truncate_episodes")
    reading = other.offline_data(input_=folder, input_order="as_recorded").build_algo()
    assert not differences(expected, trained(reading, 3))
    reading.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(6))
def test_a_run_on_the_recorded_samples_learns_the_same_bit_for_bit(seed, tmp_path):
    assert_learns_the_same(random_config(seed), random_config(seed), tmp_path / "data")


@pytest.mark.slow
@pytest.mark.parametrize("repetition", range(40))
def test_a_run_on_recorded_samples_of_fresh_settings_learns_the_same(repetition, tmp_path):
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}: {described(random_config(seed))}")
    assert_learns_the_same(random_config(seed), random_config(seed), tmp_path / "data")


def test_results_count_what_was_read_and_written(tmp_path):
    algo = life().offline_data(output=tmp_path).build_algo()
    result = algo.train()
    steps = result["num_agent_steps_sampled_lifetime"]
    assert result["offline_data"]["num_agent_steps_written_lifetime"] == steps
    algo.stop()
    reading = life().offline_data(input_=tmp_path).build_algo()
    result = reading.train()
    assert result["offline_data"]["num_agent_steps_read_lifetime"] == result["num_agent_steps_sampled_lifetime"] > 0
    assert result["offline_data"]["num_damages"] == 0
    assert result["timers"]["num_env_steps_sampled_per_second"] == 0.0
    assert "offline_data" not in life().build_algo().train()
    assert reading.evaluate(num_episodes=2)["env_runners"]["num_episodes"] == 2
    reading.stop()


def test_sampled_steps_fill_a_batch_beside_recorded_ones(tmp_path):
    """A quarter of 20 steps is recorded, so three times as many as were read are to be sampled."""
    with EpisodeWriter(tmp_path) as writer:
        writer.write([chunk("m", 10 * i, 5) for i in range(3)])
    config = SimpleNamespace(live_fraction=0.75)
    data = SimpleNamespace(reader=EpisodeReader(tmp_path), _config=config)
    read, missing = OfflineData.sample(data, 20, by_agent_steps=True)
    assert (read.agent_steps, missing) == (5, 15)


# Resuming.


@pytest.mark.few(1)
@pytest.mark.parametrize("rows", [None, 20])
def test_a_resumed_run_continues_its_files_exactly(tmp_path, rows):
    def config(name):
        return life().offline_data(output=tmp_path / name, output_max_rows_per_file=rows)

    whole = config("whole").build_algo()
    expected = trained(whole, 4)[1]
    whole.stop()
    part = config("part").build_algo()
    trained(part, 2)
    part.save_to_path(tmp_path / "checkpoint")
    trained(part, 1)  # and then the process is killed: this sample is made again
    resumed = Algorithm.from_checkpoint(tmp_path / "checkpoint", config=config("part"))
    assert not differences(expected, trained(resumed, 2)[1])
    resumed.stop()
    one, other = (
        [*map(facts, EpisodeReader(tmp_path / name, order="in_order").sample())] for name in ("whole", "part")
    )
    assert one == other


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ["shuffled", "in_order", "as_recorded"])
def test_a_resumed_run_continues_in_the_data_exactly(tmp_path, order):
    recording = life().offline_data(output=tmp_path / "data").build_algo()
    trained(recording, 5)
    recording.stop()
    algo = life().offline_data(input_=tmp_path / "data", input_order=order).build_algo()
    trained(algo, 2)
    algo.save_to_path(tmp_path / "checkpoint")
    expected = trained(algo, 4)
    resumed = Algorithm.from_checkpoint(tmp_path / "checkpoint", config=algo.config)
    assert not differences(expected, trained(resumed, 4))
    algo.stop()
    resumed.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("has_read", [True, False])
def test_a_run_without_a_seed_of_its_own_goes_on_in_the_data_with_that_of_the_checkpoint(tmp_path, has_read):
    recording = life().offline_data(output=tmp_path / "data").build_algo()
    trained(recording, 5)
    recording.stop()
    config = life().offline_data(input_=tmp_path / "data")
    algo = config.copy().build_algo()
    trained(algo, 2)
    algo.save_to_path(tmp_path / "checkpoint")
    expected = trained(algo, 4)
    other = config.copy().debugging(seed=None).build_algo()
    trained(other, has_read)
    other.restore_from_path(tmp_path / "checkpoint")
    assert not differences(expected, trained(other, 4))
    algo.stop()
    other.stop()


def test_a_checkpoint_can_be_loaded_without_its_data(tmp_path):
    recording = life().offline_data(output=tmp_path / "data").build_algo()
    trained(recording, 1)
    recording.stop()
    algo = life().offline_data(input_=tmp_path / "data").build_algo()
    trained(algo, 1)
    algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    loaded = Algorithm.from_checkpoint(tmp_path / "checkpoint", config=algo.config)
    loaded.evaluate(num_episodes=1)
    with pytest.raises(OfflineDataError, match="nothing"):
        loaded.train()
    loaded.stop()


def test_an_untrusted_checkpoint_chooses_no_files(tmp_path):
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size_per_learner=10, minibatch_size=10)
    algo = config.offline_data(output=tmp_path / "data").build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    untrusted = Algorithm.from_checkpoint(tmp_path / "checkpoint", trusted=False)
    untrusted.train()
    assert untrusted.config.output is None and untrusted.offline_data.writer is None
    untrusted.stop()
    assert EpisodeReader(tmp_path / "data").num_agent_steps == 10


# Remote env runners and learners.


@pytest.mark.accelerated  # in torch, the last bit of a row depends on the rows beside it
def test_remote_env_runners_record_the_same(monkeypatch, tmp_path):
    use_fake_ray(monkeypatch)
    for name, number in (("local", 0), ("remote", 2)):
        config = small_config(LifeEnv, env_config={"die": 0.3, "join": 0.3}).debugging(seed=3)
        config.env_runners(num_env_runners=number, num_envs_per_env_runner=4 // max(1, number))
        config.env_runners(rollout_fragment_length=4, num_env_workers=0)
        algo = config.offline_data(output=tmp_path / name).build_algo()
        trained(algo, 3)
        algo.stop()
    assert recorded(tmp_path / "remote") == recorded(tmp_path / "local")


@pytest.mark.slow
def test_a_run_with_remote_learners_records_what_they_learn_from(tmp_path):
    """With two learners, gradients are summed in another order, so that later samples need not be the same."""
    for name, number in (("local", 0), ("remote", 2)):
        with spread(number, number).offline_data(output=tmp_path / name).build_algo() as algo:
            result = algo.train()
        assert result["offline_data"]["num_agent_steps_written_lifetime"] == result["num_agent_steps_sampled_lifetime"]
    assert recorded(tmp_path / "remote") == recorded(tmp_path / "local")


# Mistakes.


def test_data_of_another_environment_are_refused_when_the_run_is_built(tmp_path):
    recording = life().offline_data(output=tmp_path).build_algo()
    recording.train()
    recording.stop()
    other = {"spaces_of": {a: (spaces.Box(-1, 1, (5,)), spaces.Discrete(3)) for a in "abc"}}
    with pytest.raises(OfflineDataError, match=r"000000.episodes"):
        life(**other).offline_data(input_=tmp_path).build_algo()
    with pytest.raises(OfflineDataError, match="agent 'c'"):
        life(agents=["a", "b"], spaces_of=dict.fromkeys("ab", (BOX, spaces.Discrete(3)))).offline_data(
            input_=tmp_path
        ).build_algo()


def test_a_second_run_does_not_overwrite_the_data_of_the_first(tmp_path):
    algo = life().offline_data(output=tmp_path).build_algo()
    algo.train()
    algo.stop()
    before = ids(tmp_path)
    second = life().offline_data(output=tmp_path).build_algo()
    with pytest.raises(OfflineDataError, match="already"):
        second.train()
    second.stop()
    assert ids(tmp_path) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_": []}, "input_"),
        ({"input_": 3}, "input_"),
        ({"output": ""}, r"\boutput\b"),
        (
            {"output_write_episodes": False},
            r"(?s)False.*to_parquet",
        ),
        ({"input_order": "random"}, r"(?s)input_order.*'shuffled'.*'in_order'.*'as_recorded'"),
        ({"output_compress_columns": []}, "'output_compress_columns'"),
        ({"input_read_method": "x"}, r"(?s)EpisodeReader.*Ray"),
    ],
)
def test_a_wrong_setting_is_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        PPOConfig().offline_data(**settings)


def test_settings_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)input_.*output"):
        life().offline_data(input_=tmp_path, output=tmp_path / "x").build_algo()
    config = life().offline_data(input_=tmp_path, input_order="as_recorded")
    with pytest.raises(ConfigError, match="batch_mode='complete_episodes'"):
        config.env_runners(batch_mode="complete_episodes").build_algo()


# Recording apart from training.


def test_record_plays_the_episodes_of_evaluate(tmp_path):
    algo = life().build_algo()
    before = plain(algo.get_state())
    results = algo.record(tmp_path / "data", num_episodes=7, seed=5)["env_runners"]
    assert plain(algo.get_state()) == before
    reader = EpisodeReader(tmp_path / "data", order="in_order")
    episodes = reader.sample()
    assert reader.num_episodes == 7 == results["num_episodes"] and all(episode.is_done for episode in episodes)
    assert len({episode.id_ for episode in episodes}) == 7
    assert np.mean([e.get_return() for e in episodes]) == pytest.approx(results["episode_return_mean"])
    algo.record(tmp_path / "random", num_episodes=2, at_random=True)
    assert not EpisodeReader(tmp_path / "random").sample()[0].all_agent_episodes()[0].extra_model_outputs
    algo.stop()


def test_record_refuses_infos_that_no_file_can_hold(tmp_path):
    class Odd(LifeEnv):
        def reset(self, seed=None, options=None):
            observations, infos = super().reset(seed=seed, options=options)
            return observations, {agent: {"odd": object()} for agent in infos}

    algo = small_config(Odd).build_algo()
    with pytest.raises(EpisodeError, match=r"info\['odd'\]"):
        algo.record(tmp_path, num_episodes=1)
    algo.stop()


# Episodes that are held out, and batches that are sampled in part.


def test_held_out_episodes_are_not_trained_on_and_evaluated_without_a_change(tmp_path):
    with life().build_algo() as algo:
        algo.record(tmp_path / "data", num_episodes=20)
    config = life().offline_data(input_=tmp_path / "data", held_out_fraction=0.25)
    with config.build_algo() as algo:
        data = algo.offline_data
        held_out = {e.id_ for e in data.held_out}
        read = {e.id_ for _ in range(3) for e in data.reader.sample()}
        assert len(held_out) == 5 and len(read) == 15 and not held_out & read
        before = plain(algo.get_state())
        result = algo.evaluate_offline()
        assert result == algo.evaluate_offline()
        assert plain(algo.get_state()) == before
        assert result["num_episodes"] == 5 and result["num_agent_steps"] == data.held_out.num_agent_steps
        assert np.isfinite([own["policy_loss"] for own in result["learners"].values()]).all()


def test_losses_of_held_out_episodes_do_not_depend_on_the_batches(tmp_path):
    with life().build_algo() as algo:
        algo.record(tmp_path / "data", num_episodes=20)
    found = []
    for size in (5, 1000):
        config = BCConfig().environment(LifeEnv, env_config={"die": 0.3, "join": 0.3}).debugging(seed=3)
        config.rl_module(model_config={"fcnet_hiddens": (4,)}).training(train_batch_size_per_learner=size)
        config.offline_data(input_=tmp_path / "data", held_out_input_=tmp_path / "data")
        with config.build_algo() as algo:
            found.append(algo.evaluate_offline())
    assert found[0]["num_episodes"] == found[1]["num_episodes"] == 20
    for module_id, own in found[0]["learners"].items():
        assert found[1]["learners"][module_id] == pytest.approx(own, rel=1e-5)


def test_losses_are_computed_as_in_evaluations_of_live_episodes_in_each_interval(tmp_path):
    with life().build_algo() as algo:
        algo.record(tmp_path / "data", num_episodes=20)
    config = life().offline_data(input_=tmp_path / "data", held_out_fraction=0.1)
    with config.evaluation(offline_evaluation_interval=2).build_algo() as algo:
        assert ["offline_evaluation" in algo.train() for _ in range(4)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("data", "evaluation", "message"),
    [
        ({"live_fraction": 0.5}, None, r"live_fraction=0.5"),
        ({"held_out_fraction": 0.5}, None, r"held_out_fraction=0.5"),
        ({"held_out_input_": "x"}, None, r"held_out_input_=\['x'\]"),
        ({"input_": "x", "live_fraction": 1.0}, None, "live_fraction=1"),
        ({"input_": "x", "held_out_fraction": 0.1, "held_out_input_": "y"}, None, "both"),
        ({"input_": "x"}, 3, "offline_evaluation_interval=3"),
    ],
)
def test_settings_of_held_out_and_live_episodes_need_recorded_ones(data, evaluation, message):
    with pytest.raises(ConfigError, match=message):
        life().offline_data(**data).evaluation(offline_evaluation_interval=evaluation).build_algo()


def test_an_evaluation_on_recorded_episodes_needs_held_out_ones(tmp_path):
    with life().build_algo() as algo, pytest.raises(ConfigError, match="held"):
        algo.evaluate_offline()
