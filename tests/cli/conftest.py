"""The command line with a fake ``Algorithm``, in an empty folder."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from helpers.fake_algorithm import FakeAlgorithm
from marl_connectors.algorithms.fitting import pictures, saver
from marl_connectors.cli import evaluate, training_run
from marl_connectors.cli.main import main
from marl_connectors.cli.run_settings import RunSettings

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _pictures_are_not_painted(monkeypatch):
    """Curves are plotted, but their file has the first bytes of a PNG only, because to paint it takes most of the time.

    Test files that look at pictures have a fixture of this name that does nothing.
    """

    def write(figure, file):
        Path(file).write_bytes(PNG) if isinstance(file, Path) else file.write(PNG)

    monkeypatch.setattr(pictures, "_paint", write)


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
        self.algo.config.env, self.algo.seed = settings.env, settings.seed
        return self.algo

    def load(
        self, checkpoint, changed=None, *, trusted=True, new_episodes=False, chosen=None, local=False, source=None
    ):
        self.changed, self.trusted, self.new_episodes, self.local = changed, trusted, new_episodes, local
        self.source = source
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
    monkeypatch.setattr(saver, "_SOON_KEPT_S", math.inf)  # however busy the machine is
    monkeypatch.setattr(RunSettings, "build_algorithm", lambda settings: line.build(settings))
    monkeypatch.setattr(training_run, "load_algorithm", line.load)
    monkeypatch.setattr(evaluate, "load_algorithm", line.load)
    return line
