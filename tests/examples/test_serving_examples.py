"""The examples that act with exported policies, over HTTP and without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from helpers.modules.policies_by_hand import make_policy

SERVING = Path(__file__).parents[2] / "examples" / "serving"
OBSERVATION = [0.1, 0.2, 0.3]
WITHOUT_TORCH = f"""
import json, sys
from pathlib import Path

sys.modules.update(torch=None, marl_connectors=None)  # importing one of them would raise an error
import http_server as server

with server.serving(server.make_app(Path(sys.argv[1]))) as address:
    session = f"{{address}}/sessions/{{server.post(f'{{address}}/sessions')['session']}}"
    print(json.dumps(server.post(f"{{session}}/act", {{"observations": {{"default_agent": {OBSERVATION}}}}})))
"""


@pytest.fixture(autouse=True)
def _needs_onnx():
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)


@pytest.fixture
def server(example):
    for name in ("fastapi", "uvicorn"):
        pytest.importorskip(name)
    return example("serving/http_server")


@pytest.fixture
def policy():
    return make_policy((spaces.Box(-1.0, 1.0, (3,)), spaces.Box(0.0, 1.0, (2,))))


@pytest.mark.slow
def test_a_process_without_torch_plays_the_episode_that_load_policy_plays(example, capsys):
    example("serving/without_torch").main()
    found = re.findall(r"^(without torch|with load_policy): (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert [who for who, _ in found] == ["without torch", "with load_policy"]
    assert found[0][1] == found[1][1] and "agent_7" in found[0][1]


@pytest.mark.slow
def test_a_trained_policy_plays_over_http(server, capsys):
    server.main()
    total = int(re.fullmatch(r"Return of an episode whose actions came over HTTP: (\d+)\n", capsys.readouterr().out)[1])
    assert total > 15


def ask(address, content, method="POST"):
    """Returns the status and the text of the answer to a request of bytes."""
    request = urllib.request.Request(address, content, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
def test_wrong_requests_are_explained(server, policy, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MAX_SESSIONS", 1)
    with server.serving(server.make_app(policy.export_onnx(tmp_path / "export"))) as address:
        assert server.post(f"{address}/sessions") == {"session": 1}
        act, right = f"{address}/sessions/1/act", {"observations": {"default_agent": OBSERVATION}}
        np.testing.assert_allclose(
            server.post(act, right)["actions"]["default_agent"], policy(np.float32(OBSERVATION)), rtol=1e-5
        )
        digits = "9" * 400
        for wrong, status, message in (
            ('{"observations": {"default_agent": [0.1]}}', 422, "must have the shape"),
            ('{"observations": {"default_agent": [0.1, NaN, 0.2]}}', 422, "not finite"),
            (f'{{"observations": {{"default_agent": [0.1, {digits}, 0.2]}}}}', 422, "numbers"),
            (f'{{"observations": {{"default_agent": [0.1, {digits * 20}, 0.2]}}}}', 400, ""),
            ('{"observations": {"default_agent": "text"}}', 422, "numbers"),
            ('{"observations": [1]}', 422, "observations"),
            ("{", 422, "JSON"),
            ('{"observations": {"default_agent": [%s]}}' % ("[0.1, 0.2, 0.3], " * 100_000), 413, "1000000 bytes"),
        ):
            answer = ask(act, wrong.encode())
            assert answer[0] == status and message in answer[1], wrong[:80]
        assert ask(f"{address}/sessions/2/act", json.dumps(right).encode())[0] == 404
        assert ask(f"{address}/sessions", b"")[0] == 429
        assert ask(f"{address}/sessions/1", None, "DELETE")[0] == 200
        assert server.post(f"{address}/sessions") == {"session": 2}


@pytest.mark.slow
def test_a_server_without_torch_and_this_library_answers_as_the_policy_does(server, policy, tmp_path):
    command = [sys.executable, "-c", WITHOUT_TORCH, str(policy.export_onnx(tmp_path / "export"))]
    done = subprocess.run(command, cwd=SERVING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    action = json.loads(done.stdout)["actions"]["default_agent"]
    np.testing.assert_allclose(action, policy(np.float32(OBSERVATION)), rtol=1e-5)
