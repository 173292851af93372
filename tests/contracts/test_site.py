"""The documentation site can be built without a warning, and has every page and every public name."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import marl_connectors

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_every_example(site):
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "decisions").glob("*.md")]
    places = [page.relative_to(ROOT / "docs").with_suffix("") for page in pages]
    places += [path.relative_to(ROOT) for path in (ROOT / "examples").rglob("*.py")]
    assert [str(place) for place in places if not (site / place / "index.html").is_file()] == []


@pytest.mark.slow
def test_the_reference_describes_every_public_name(site):
    pages = "".join(path.read_text(encoding="utf-8") for path in (site / "api").rglob("*.html"))
    missing = [name for name in marl_connectors.__all__ if f">{name}<" not in pages and f'.{name}"' not in pages]
    assert missing == []


@pytest.mark.slow
def test_pages_load_nothing_from_other_hosts(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis" not in home and 'src="http' not in home


@pytest.mark.slow
def test_the_code_of_the_notebook_runs(tmp_path, monkeypatch):
    pytest.importorskip("mpe2")
    import torch

    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3", "the kernel that every installation has"
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    namespace: dict[str, object] = {"__name__": "notebook"}
    try:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                code = (
                    "".join(cell["source"])
                    .replace("num_agent_steps=384_000", "num_agent_steps=1")
                    .replace("num_episodes=100", "num_episodes=2")
                )
                assert cell["outputs"] == [] and ast.parse(code)
                exec(compile(code, "quickstart.ipynb", "exec", dont_inherit=True), namespace)
    finally:
        torch.set_num_threads(threads)
