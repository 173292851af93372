from helpers.episodes.little_chunks import chunk
from marl_connectors import EpisodeReader, EpisodeWriter, MultiAgentEpisode
from marl_connectors.offline.summary import summarize


def test_a_summary_is_worked_out_by_hand(tmp_path):
    """The returns of whole episodes: a has 1.0 + 2.0, b 0.5 in the first, and a 4.0 in the second."""
    one = MultiAgentEpisode("0-0", agent_module_ids={"a": "m", "b": "n"})
    one.add_env_reset(observations={"a": 0.0, "b": 0.0})
    one.add_env_step({"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}, {"a": 1.0, "b": 0.5}, terminateds={"b": True})
    rest = one.cut()
    rest.add_env_step({"a": 2.0}, {"a": 1}, {"a": 2.0}, truncateds={"a": True})
    two = MultiAgentEpisode("0-1", agent_module_ids={"a": "m"})
    two.add_env_reset(observations={"a": 0.0})
    two.add_env_step({"a": 1.0}, {"a": 1}, {"a": 4.0}, terminateds={"__all__": True})
    three = MultiAgentEpisode("0-2", agent_module_ids={"a": "m"})
    three.add_env_reset(observations={"a": 0.0})
    three.add_env_step({"a": 1.0}, {"a": 1}, {"a": 9.0})
    with EpisodeWriter(tmp_path) as writer:
        writer.write([one, two])
        writer.write([rest, three])
    found = summarize(EpisodeReader(tmp_path))
    assert (found["samples"], found["chunks"], found["whole_episodes"]) == (2, 4, 2)
    assert (found["env_steps"], found["agent_steps"]) == (4, 5)
    assert (found["all_returns"], found["all_lengths"]) == ([3.5, 4.0], [2, 1])
    assert found["returns"] == {"mean": 3.75, "std": 0.25, "min": 3.5, "max": 4.0}
    assert found["agents"]["a"]["steps_by_module"] == {"m": 4}
    assert found["agents"]["a"]["returns"]["mean"] == 3.5 and found["agents"]["b"]["returns"]["mean"] == 0.5
    assert found["damages"] == [] and found["bytes"] > 100


def test_data_without_whole_episodes_have_no_returns(tmp_path):
    with EpisodeWriter(tmp_path) as writer:
        writer.write([chunk("m", 0, 2)])
    found = summarize(EpisodeReader(tmp_path))
    assert found["returns"] is None and found["agents"]["a"]["returns"] is None
    assert found["agents"]["a"]["observation_space"] == "Box(1,) float32"


def test_returns_contain_rewards_that_belong_to_no_action(tmp_path):
    """Agent b ends in the first chunk and is paid 8.0 in the next one; c is paid 16.0 and never acts."""
    one = MultiAgentEpisode("0-0", agent_module_ids={"a": "m", "b": "n"})
    one.add_env_reset(observations={"a": 0.0, "b": 0.0})
    one.add_env_step({"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}, {"a": 1.0, "b": 0.5}, terminateds={"b": True})
    rest = one.cut()
    paid = {"a": 2.0, "b": 8.0, "c": 16.0}
    rest.add_env_step({"a": 2.0}, {"a": 1}, paid, terminateds={"a": True})
    with EpisodeWriter(tmp_path) as writer:
        writer.write([one, rest])
    found = summarize(EpisodeReader(tmp_path))
    assert found["all_returns"] == [1.0 + 0.5 + 2.0 + 8.0 + 16.0]
    assert found["agents"]["a"]["returns"]["mean"] == 3.0 and found["agents"]["b"]["returns"]["mean"] == 8.5


def test_returns_contain_rewards_after_the_last_step_of_an_agent_that_is_still_there(tmp_path):
    """Agent a observes the end of the first chunk, takes no step in the next one and is paid 8.0 there."""
    one = MultiAgentEpisode("0-0", agent_module_ids={"a": "m", "b": "m"})
    one.add_env_reset(observations={"a": 0.0, "b": 0.0})
    one.add_env_step({"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}, {"a": 1.0, "b": 0.5})
    rest = one.cut()
    rest.add_env_step({"b": 2.0}, {"b": 1}, {"a": 8.0, "b": 2.0}, terminateds={"__all__": True})
    with EpisodeWriter(tmp_path) as writer:
        writer.write([one, rest])
    found = summarize(EpisodeReader(tmp_path))
    assert found["all_returns"] == [1.0 + 0.5 + 2.0 + 8.0]
    assert found["agents"]["a"]["returns"]["mean"] == 9.0 and found["agents"]["b"]["returns"]["mean"] == 2.5
