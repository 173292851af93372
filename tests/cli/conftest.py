"""The command line with a fake ``Algorithm``, in an empty folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from marl_connectors.cli import evaluate, train
from marl_connectors.cli.main import main
from marl_connectors.cli.run_settings import RunSettings


def _load_fake():
    spec = importlib.util.spec_from_file_location("fake_algorithm", Path(__file__).with_name("fake_algorithm.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FakeAlgorithm


FakeAlgorithm = _load_fake()


class CommandLine:
    """Runs commands; what they build next is in ``algo``, and what they built with in ``settings``."""

    def __init__(self, capsys):
        self._capsys = capsys
        self.fake = FakeAlgorithm
        self.algo = FakeAlgorithm()
        self.settings = None
        self.trusted = None
        self.out = self.err = ""

    def build(self, settings):
        self.settings = settings
        settings.mapping_fn()
        self.algo.config.env = settings.env
        return self.algo

    def load(self, checkpoint, changed=None, *, trusted=True, new_episodes=False):
        self.changed, self.trusted, self.new_episodes = changed, trusted, new_episodes
        self.algo = FakeAlgorithm.from_checkpoint(checkpoint)
        return self.algo

    def __call__(self, *words):
        self._capsys.readouterr()
        status = main(list(words))
        self.out, self.err = self._capsys.readouterr()
        return status


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    line = CommandLine(capsys)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RunSettings, "build_algorithm", lambda settings: line.build(settings))
    monkeypatch.setattr(train, "load_algorithm", line.load)
    monkeypatch.setattr(evaluate, "load_algorithm", line.load)
    return line
