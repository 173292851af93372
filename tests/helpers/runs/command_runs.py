"""The settings, configs and algorithms that words of ``marl-connectors train`` stand for."""

from __future__ import annotations

from marl_connectors.cli.layers import resolved, user_tree
from marl_connectors.cli.made_config import make_config
from marl_connectors.cli.parser import parse, words_of


def tree_of(*words):
    return resolved(user_tree(words_of(parse(["train", *words]))))


def config_of(*words):
    return make_config(tree_of(*words))


def built(*words):
    """The algorithm without the zoo's settings."""
    return config_of(*words, "--no-preset").build_algo()
