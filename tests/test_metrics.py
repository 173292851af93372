"""Figures that pieces log: what becomes of them, in all three pipelines, on items and on columns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.errors import ConfigError, ConnectorError
from marl_connectors.metrics import MetricsLogger, by_pipeline, merged_metrics, reduced

VALUES = (1.0, 2.0, 4.0)
EMA = 1.0399  # of 1, 2, 4 with 0.01; as RLlib 2.60 has it
TWICE = 1.0786149300999999


def logged(values=VALUES, logger=None, **settings):
    logger = logger or MetricsLogger()
    for value in values:
        logger.log_value("x", value, **settings)
    return logger


# (settings, after an iteration, after a second one with the same values, after a third one without any): RLlib 2.60's
# answers, except that what has no values is not there instead of being NaN.
CASES = [
    ({}, EMA, TWICE, TWICE),
    ({"ema_coeff": 0.5}, 2.75, 2.96875, 2.96875),
    ({"reduce": "ema", "ema_coeff": 0.5}, 2.75, 2.96875, 2.96875),
    ({"reduce": "mean"}, 7 / 3, 7 / 3, None),
    ({"reduce": "mean", "window": 2}, 3.0, 3.0, None),
    ({"window": 2}, 3.0, 3.0, None),
    ({"reduce": "sum"}, 7.0, 7.0, None),
    ({"reduce": "sum", "window": 2}, 6.0, 6.0, None),
    ({"reduce": "min"}, 1.0, 1.0, None),
    ({"reduce": "max"}, 4.0, 4.0, None),
    ({"reduce": "min", "window": 2}, 2.0, 2.0, None),
    ({"reduce": "item"}, 4.0, 4.0, None),
    ({"reduce": "item_series"}, [1.0, 2.0, 4.0], [1.0, 2.0, 4.0], None),
    ({"reduce": "item_series", "window": 2}, [2.0, 4.0], [2.0, 4.0], None),
    ({"reduce": "sum", "clear_on_reduce": True}, 7.0, 7.0, None),
    ({"reduce": "lifetime_sum"}, 7.0, 14.0, 14.0),
    ({"reduce": "sum", "clear_on_reduce": False}, 7.0, 14.0, 14.0),
    ({"reduce": "max", "clear_on_reduce": False}, 4.0, 4.0, 4.0),
    ({"window": 4, "clear_on_reduce": False}, 7 / 3, 11 / 4, 11 / 4),
    ({"clear_on_reduce": True}, EMA, EMA, None),
]


@pytest.mark.parametrize(("settings", "first", "second", "third"), CASES)
def test_three_iterations(settings, first, second, third):
    logger = logged(**settings)
    assert logger.peek("x") == pytest.approx(first)
    assert logger.reduce()["x"] == pytest.approx(first)
    assert logged(logger=logger, **settings).reduce()["x"] == pytest.approx(second)
    assert logger.reduce() == ({} if third is None else {"x": pytest.approx(third)})


@pytest.mark.parametrize(("settings", "first", "second", "third"), CASES)
def test_a_saved_logger_goes_on(settings, first, second, third):
    logger, other = logged(VALUES[:2], **settings), MetricsLogger()
    other.set_state(logger.get_state())
    assert logged(VALUES[2:], other, **settings).reduce()["x"] == pytest.approx(first)
    again = MetricsLogger()
    again.set_state(other.get_state())
    assert logged(logger=again, **settings).reduce()["x"] == pytest.approx(second)


def test_values_with_one_number_are_numbers():
    values = [1, True, np.float32(2), np.array([3.0]), torch.tensor(4.0, requires_grad=True), torch.tensor([[5]])]
    assert logged(values, reduce="item_series").peek("x")[:3] == [1, True, 2.0]
    assert logged(values, reduce="sum").peek("x") == 16.0
    with pytest.raises(ConfigError, match=r"(?s)'x'.*\(3,\)"):
        logged([np.zeros(3)])
    with pytest.raises(ConfigError, match=r"(?s)'x'.*'red'"):
        logged(["red"])
    assert logged(["red"], reduce="item").peek("x") == "red"


def test_keys_nest_and_dicts_are_logged_leaf_by_leaf():
    logger = MetricsLogger()
    logger.log_dict({"a": 1.0, "b": {"c": 2.0}, ("d", "e"): 3.0}, key=("k", "l"))
    logger.log_dict({"a": 3.0}, key=("k", "l"))
    logger.log_value("k2", 5.0)
    inner = {"a": 2.0, "b": {"c": 2.0}, "d": {"e": 3.0}}
    assert logger.peek(("k", "l")) == inner
    assert logger.peek(("k", "l", "b", "c")) == 2.0
    assert logger.peek() == logger.reduce() == {"k": {"l": inner}, "k2": 5.0}


def test_peek_at_nothing():
    logger = logged(reduce="mean")
    assert logger.peek("y", default=3) == 3
    with pytest.raises(KeyError, match="'xx'"):
        logger.peek("xx")
    logger.reduce()
    assert math.isnan(logger.peek("x"))
    assert logger.peek() == {}


def test_a_time_is_measured():
    logger = MetricsLogger()
    for _ in range(2):
        with logger.log_time(("timers", "x"), reduce="item_series"):
            pass
    seconds = logger.peek(("timers", "x"))
    assert len(seconds) == 2
    assert all(0 < s < 60 for s in seconds)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reduction": "mean"}, r"(?s)log_value.*'reduction'.*'reduce'"),
        ({"reduce": "maximum"}, r"(?s)'x'.*reduce='maximum'.*'max'"),
        ({"window": 0}, r"(?s)window.*\b0\b"),
        ({"window": 3, "ema_coeff": 0.5}, "window"),
        ({"reduce": "lifetime_sum", "window": 3}, "window"),
        ({"reduce": "max", "ema_coeff": 0.5}, "reduce='ema'"),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(ConfigError, match=message):
        logged(**settings)
    logger = logged()
    if "reduction" in settings:  # also where the key is known
        with pytest.raises(ConfigError, match=message):
            logged(logger=logger, **settings)
        with pytest.raises(ConfigError, match=r"(?s)log_dict.*'reduction'"):
            logger.log_dict({"x": 1.0}, **settings)
        with (
            pytest.raises(ConfigError, match=r"(?s)log_time.*'reduction'"),
            logger.log_time("t", **settings),
        ):
            pass


@pytest.mark.parametrize("keys", [("a", ("a", "b")), (("a", "b"), "a")])
def test_a_figure_has_no_figures_in_it(keys):
    logger = MetricsLogger()
    logger.log_value(keys[0], 1.0)
    with pytest.raises(ConfigError, match="contains"):
        logger.log_value(keys[1], 1.0)


def test_pipelines_without_figures_are_left_out():
    one, none = logged([2.0]), MetricsLogger()
    assert by_pipeline(reduced({"one": one, "none": none})) == {"connectors": {"one": {"x": 2.0}}}
    assert by_pipeline(reduced({"none": none})) == {}


# A whole algorithm.


class LogsOnItems(ConnectorV2):
    def __call__(self, *, batch, episodes, metrics=None, **kwargs):
        log(metrics)
        return batch


class LogsOnColumns(ConnectorV2):
    def columns(self, c, xp):
        log(c.metrics)


def log(metrics):
    metrics.log_value("calls", 1, reduce="sum")
    metrics.log_value(("deep", "ever"), 1, reduce="lifetime_sum")
    metrics.log_value("average", metrics.peek(("deep", "ever")), ema_coeff=0.5)


def config(piece=None, **kwargs):
    made = (
        PPOConfig()
        .environment("marl_envs.null_v0", env_config={"n_agents": 2})
        .training(train_batch_size_per_learner=8, num_epochs=1, minibatch_size=None)
        .env_runners(num_envs_per_env_runner=2, rollout_fragment_length=4)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .debugging(seed=0)
    )
    if piece is None:
        return made
    return made.env_runners(env_to_module_connector=lambda: piece(), module_to_env_connector=lambda: piece()).learners(
        learner_connector=lambda: piece()
    )


@pytest.mark.parametrize("piece", [LogsOnItems, LogsOnColumns])
def test_pieces_of_all_pipelines_log(piece):
    algo = config(piece).build_algo()
    algo.explain()  # leaves nothing behind
    first, second = (algo.train()["connectors"] for _ in range(2))
    assert list(first) == list(second) == ["env_to_module", "module_to_env", "learner"]
    assert first["module_to_env"] == {"calls": 4.0, "deep": {"ever": 4.0}, "average": 3.125}  # 1 1.5 2.25 3.125
    assert second["module_to_env"]["calls"] == 4.0
    assert second["module_to_env"]["deep"]["ever"] == 8.0
    assert first["learner"] == {"calls": 1.0, "deep": {"ever": 1.0}, "average": 1.0}
    assert second["learner"] == {"calls": 1.0, "deep": {"ever": 2.0}, "average": 1.5}
    assert first["env_to_module"]["calls"] >= 5  # the first observations are before the first step
    evaluated = algo.evaluate(num_episodes=1)["env_runners"]
    assert list(evaluated["connectors"]) == ["env_to_module", "module_to_env"]
    assert algo.train()["connectors"]["module_to_env"]["deep"]["ever"] == 12.0  # without the evaluation's
    algo.stop()


def test_a_checkpoint_has_them(tmp_path):
    algo = config(LogsOnItems).build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "checkpoint")
    other = type(algo).from_checkpoint(tmp_path / "checkpoint", config=config(LogsOnItems))
    one, two = algo.train()["connectors"], other.train()["connectors"]
    assert one == two
    assert one["module_to_env"]["deep"]["ever"] == 8.0
    assert one["learner"]["deep"]["ever"] == 2.0
    algo.stop()
    other.stop()


def test_nothing_is_added_where_no_piece_logs():
    algo = config().build_algo()
    assert "connectors" not in algo.train()
    assert "connectors" not in algo.evaluate(num_episodes=1)["env_runners"]
    algo.stop()


def test_a_wrong_argument_in_a_piece_names_the_piece():
    class Typo(ConnectorV2):
        def __call__(self, *, batch, metrics=None, **kwargs):
            metrics.log_value("x", 1.0, windows=3)
            return batch

    algo = config(Typo).build_algo()
    with pytest.raises(ConnectorError, match=r"(?s)EnvToModulePipeline.*Typo.*'window'"):
        algo.train()
    algo.stop()


def merged_result(*values, **settings):
    """The result of loggers with these values, merged."""
    logger = MetricsLogger()
    logger.set_state(merged_metrics([logged(own, **settings).get_state() for own in values]))
    return logger.peek().get("x")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"reduce": "mean"}, 15.0 / 4),
        ({"reduce": "sum"}, 15.0),
        ({"reduce": "lifetime_sum"}, 15.0),
        ({"reduce": "min"}, 1.0),
        ({"reduce": "max"}, 8.0),
        ({"reduce": "item"}, 8.0),
        ({"reduce": "item_series"}, [1.0, 2.0, 4.0, 8.0]),
        ({"reduce": "mean", "window": 2}, 6.0),
        ({"reduce": "max", "window": 3}, 8.0),
        ({"reduce": "ema", "ema_coeff": 0.5}, (3 * 2.75 + 1 * 8.0) / 4),
    ],
    ids=str,
)
def test_the_metrics_of_loggers_are_merged(settings, expected):
    values = (1.0, 2.0, 4.0), (), (8.0,)
    assert merged_result(*values, **settings) == expected


def test_a_metric_of_one_logger_stays_as_it_is():
    one, other = logged((0.1, 0.2, 0.7)), MetricsLogger()
    other.log_value("y", 3.0, reduce="sum")
    assert merged_metrics([one.get_state(), other.get_state(), []]) == one.get_state() + other.get_state()


def test_the_first_logger_defines_the_reduction():
    assert merged_metrics(
        [logged((1.0, 3.0), reduce="mean").get_state(), logged((9.0,), reduce="sum").get_state()]
    ) == (logged((1.0, 3.0), reduce="mean").get_state())
