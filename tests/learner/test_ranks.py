"""Several learners, each with its own episodes, update modules as one learner with all episodes does."""

from __future__ import annotations

import math
import pickle
import secrets

import numpy as np
import pytest
import torch

from helpers.runs.random_runs import described
from helpers.runs.rank_configs import (
    CASES,
    batch_norm_config,
    counting_config,
    items_config,
    life_config,
    mapped_config,
    masked_config,
    normalized_config,
    random_case,
    values_config,
)
from helpers.runs.rank_processes import RankPool, largest_difference, shares_by_env, updates_of_one
from marl_connectors.algorithms.actor_critic.learner import VALUE_MOMENTS
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.errors import LearnerError
from marl_connectors.learner.ranks import check_can_be_divided
from marl_connectors.state import fields_of


@pytest.fixture(scope="module")
def pool():
    """Three processes for all tests here."""
    processes = RankPool(3)
    yield processes
    processes.close()


def keep_moments(algo):
    """Lets the results keep the moments from which the explained variance was computed."""
    completed = algo.learner.completed_statistics

    def with_moments(means):
        kept = {
            module_id: {name: own[name] for name in VALUE_MOMENTS if name in own} for module_id, own in means.items()
        }
        return {module_id: {**own, **kept[module_id]} for module_id, own in completed(means).items()}

    algo.learner.completed_statistics = with_moments


def rank_updates(pool, make_config, rank_of, size, *, updates=3, prepare=keep_moments):
    """The updates of one learner, and the same ones by ranks; ``rank_of`` maps numbers of sub-environments to ranks."""
    one = updates_of_one(make_config, updates, prepare)
    shares = list(zip(*[shares_by_env(episodes, rank_of, size) for episodes in one.episodes], strict=True))
    return one, pool.run(make_config, shares, one.timesteps, prepare)


def rounding_of_explained_variance(targets, squares, errors, squared_errors):
    """Targets and values are rounded to float32 a few times, much beside the deviation of targets that hardly vary."""
    return 3e-6 * math.sqrt(max(squares, squared_errors) / max(squares - targets**2, 1e-12 * squares, 1e-30))


def check_equal(one, ranks, message=""):
    """Ranks have the same state, bit for bit. But for round-off, state and results are those of one learner."""
    assert [rank.error for rank in ranks] == [None] * len(ranks), message
    for rank in ranks:
        assert largest_difference(rank.state["module"], ranks[0].state["module"]) == 0.0, message
        assert largest_difference(one.state["module"], rank.state["module"]) < 1e-5, message
        assert rank.state["num_updates"] == one.state["num_updates"]
        for expected, found in zip(one.results, rank.results, strict=True):
            assert expected.keys() == found.keys()
            for module_id, statistics in expected.items():
                assert statistics.keys() == found[module_id].keys()
                assert statistics["num_module_steps_trained"] == found[module_id]["num_module_steps_trained"]
                names, rounding = statistics.keys() - {*VALUE_MOMENTS, "vf_explained_var"}, 0.0
                if VALUE_MOMENTS[0] in statistics:
                    rounding = rounding_of_explained_variance(*(statistics[name] for name in VALUE_MOMENTS))
                for own, abs_ in ((names, 2e-5), (statistics.keys() & {"vf_explained_var"}, 2e-5 + rounding)):
                    wanted, got = ({name: each[name] for name in own} for each in (statistics, found[module_id]))
                    assert got == pytest.approx(wanted, rel=2e-4, abs=abs_), f"{message} {module_id}"


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_ranks_update_as_one_learner(pool, name):
    rng = np.random.default_rng(len(name))
    size = int(rng.integers(2, 4))
    rank_of = rng.integers(0, size, 6)
    check_equal(*rank_updates(pool, CASES[name], lambda env: int(rank_of[env]), size))


def check_random(pool, seed):
    rng = np.random.default_rng([seed, 2])
    size = int(rng.integers(2, 4))
    rank_of, make_config = rng.integers(0, size, 8), random_case(seed)
    one, ranks = rank_updates(pool, make_config, lambda env: int(rank_of[env]), size)
    check_equal(one, ranks, f"seed {seed}, ranks {rank_of}: {described(make_config())}")


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [0, 680831097, 573740095, 1])  # the second and third have targets that hardly vary
def test_ranks_update_as_one_learner_in_random_runs(pool, seed):
    check_random(pool, seed)


@pytest.mark.slow
def test_ranks_update_as_one_learner_in_many_random_runs(pool):
    first = secrets.randbits(31)
    for seed in range(first, first + 30):
        check_random(pool, seed)


def test_a_rank_without_any_episodes_takes_all_steps(pool):
    one, ranks = rank_updates(pool, life_config, lambda env: 0, 3)
    check_equal(one, ranks)


def test_a_module_that_only_one_rank_has_is_updated_on_all(pool):
    one = updates_of_one(mapped_config, 3)
    shares = []
    for episodes in one.episodes:
        whole = pickle.loads(episodes)
        ranks = [int("b" not in {e.module_id for e in episode.agent_episodes.values()}) for episode in whole]
        assert set(ranks) == {0, 1}
        own = [[i for i, rank in enumerate(ranks) if rank == wanted] for wanted in (0, 1)]
        shares.append([(pickle.dumps([whole[i] for i in positions]), positions) for positions in own])
    check_equal(one, pool.run(mapped_config, list(zip(*shares, strict=True)), one.timesteps))


def test_the_adaptive_kl_penalty_follows_the_divergence_of_all_rows(pool):
    one, ranks = rank_updates(pool, mapped_config, lambda env: env % 2, 2)
    assert set(one.state["kl_coeffs"].values()) - {0.2}
    assert [rank.state["kl_coeffs"] for rank in ranks] == [one.state["kl_coeffs"]] * 2


def test_optimizers_of_all_ranks_have_the_moments_of_one_learner(pool):
    one, ranks = rank_updates(pool, masked_config, lambda env: env % 3, 3)
    for rank in ranks:
        for module_id, own in one.state["optimizers"].items():
            for expected, found in zip(own.adam, rank.state["optimizers"][module_id].adam, strict=True):
                torch.testing.assert_close(fields_of(found), fields_of(expected), rtol=1e-3, atol=1e-6)


def test_values_that_pieces_log_are_those_of_all_ranks(pool):
    one, ranks = rank_updates(pool, items_config, lambda env: env % 2, 2)
    assert one.state["metrics"]
    assert [rank.state["metrics"] for rank in ranks] == [one.state["metrics"]] * 2


@pytest.mark.slow
def test_values_that_a_loss_logs_are_those_of_all_ranks(pool):
    one, ranks = rank_updates(pool, counting_config, lambda env: env % 2, 2)
    sums = [{m.key[0]: m.total for m in own.state["metrics"]} for own in (one, *ranks)]
    assert sums[0].keys() == set("abcd") and min(sums[0].values()) > 0
    assert sums[1] == sums[2] == sums[0]


def test_buffers_that_training_changes_are_the_same_on_all_ranks(pool):
    _, ranks = rank_updates(pool, batch_norm_config, lambda env: env % 2, 2)
    assert [rank.error for rank in ranks] == [None, None]
    assert largest_difference(ranks[0].state["module"], ranks[1].state["module"]) == 0.0
    assert ranks[0].state["module"]["a"]["norm.num_batches_tracked"] > 0


def test_the_state_of_pieces_is_that_of_one_learner(pool):
    one, ranks = rank_updates(pool, normalized_config, lambda env: env % 2, 2)
    expected = one.state["pipeline"]["NormalizeRewards"]
    for rank in ranks:
        found = rank.state["pipeline"]["NormalizeRewards"]
        assert (found.new, found.ended) == (expected.new, expected.ended)
        assert largest_difference(found.merged, expected.merged) < 1e-6
        assert found.ongoing.keys() == expected.ongoing.keys()
        for module_id, ongoing in expected.ongoing.items():
            assert found.ongoing[module_id] == {id_: (t, pytest.approx(total)) for id_, (t, total) in ongoing.items()}


def test_statistics_of_values_are_those_of_one_learner(pool):
    one, ranks = rank_updates(pool, values_config, lambda env: env % 3, 3)
    expected = one.state["pipeline"]["GeneralAdvantageEstimation"].value_targets
    assert set(expected) == {"a", "b"}
    for rank in ranks:
        found = rank.state["pipeline"]["GeneralAdvantageEstimation"].value_targets
        assert found == ranks[0].state["pipeline"]["GeneralAdvantageEstimation"].value_targets
        for module_id, moments in expected.items():
            assert fields_of(found[module_id]) == pytest.approx(fields_of(moments), rel=1e-5)


# Failures.


def spoil_rewards(algo):
    """The rewards of the fourth sub-environment are NaN."""
    piece = algo.learner.pipeline["AddColumnsFromEpisodesToTrainBatch"]
    before = piece.columns

    def spoiled(c, xp):
        before(c, xp)
        for i, chunk in enumerate(c.rows.episodes):
            if str(chunk.multi_agent_episode_id).startswith("3-"):
                begin = sum(c.rows.counts[:i])
                c["rewards"][begin : begin + c.rows.counts[i]] = np.nan

    piece.columns = spoiled
    algo.learner.pipeline.set_input_spaces(None, None)


def test_all_ranks_name_the_column_that_is_not_finite_on_one_of_them(pool):
    one = updates_of_one(life_config, 1)
    shares = list(zip(*[shares_by_env(episodes, lambda env: env % 2, 2) for episodes in one.episodes], strict=True))
    errors = [rank.error for rank in pool.run(life_config, shares, one.timesteps, spoil_rewards)]
    assert errors[0] == errors[1]
    assert "The column 'rewards' is not finite" in errors[0]


def fail_on_rank_1(algo):
    """The loss raises an error on rank 1."""
    compute = algo.learner.compute_loss_for_module

    def failing(**given):
        if algo.learner.ranks.rank == 1:
            raise ValueError("the user's own error")
        return compute(**given)

    algo.learner.compute_loss_for_module = failing


def test_an_error_on_one_rank_ends_the_update_on_the_others(pool):
    one = updates_of_one(life_config, 1)
    shares = list(zip(*[shares_by_env(episodes, lambda env: env % 3, 3) for episodes in one.episodes], strict=True))
    errors = [rank.error for rank in pool.run(life_config, shares, one.timesteps, fail_on_rank_1)]
    assert "ValueError: the user's own error" in errors[1]
    for rank in (0, 2):
        assert f"LostRankError: Ranks: rank {rank} of 3 lost the others while" in errors[rank]


def freeze_on_rank_1(algo):
    """Rank 1 has another module than the others."""

    def begin(*, timesteps):
        if algo.learner.ranks is not None and algo.learner.ranks.rank == 1:
            next(algo.rl_module["a"].parameters()).requires_grad_(False)

    algo.learner.before_gradient_based_update = begin


def test_ranks_with_different_modules_take_no_step(pool):
    _, ranks = rank_updates(pool, life_config, lambda env: env % 2, 2, updates=1, prepare=freeze_on_rank_1)
    for rank in ranks:
        assert rank.error is not None and "rank 1 has other parameters than rank 0" in rank.error


def count_calls(algo):
    """A piece has a state that differs among ranks."""
    piece = algo.learner.pipeline["AddObservationsFromEpisodesToBatch"]
    piece.get_state = lambda: {"rank": -1 if algo.learner.ranks is None else algo.learner.ranks.rank}


def test_a_piece_whose_states_cannot_be_merged_is_named(pool):
    _, ranks = rank_updates(pool, life_config, lambda env: env % 2, 2, updates=1, prepare=count_calls)
    for rank in ranks:
        assert rank.error is not None
        assert "AddObservationsFromEpisodesToBatch: the 2 states of this piece differ" in rank.error


class Clipped(GeneralAdvantageEstimation):
    def columns(self, c, xp):
        super().columns(c, xp)
        c["advantages"] = c["advantages"].clamp(-1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda algo: algo._set(policies_to_train=lambda module_id, batch: True), "reads"),
        (lambda algo: algo.learner.pipeline.append(Clipped()), r"(?s)Clipped.*overrides"),
    ],
)
def test_what_needs_the_whole_batch_is_refused(change, message):
    algo = life_config().build_algo()
    check_can_be_divided(algo.config, algo.learner.pipeline)
    change(algo)
    with pytest.raises(LearnerError, match=message):
        check_can_be_divided(algo.config, algo.learner.pipeline)
    algo.stop()
