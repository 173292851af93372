"""The examples that act with exported policies, over HTTP and without torch."""

from __future__ import annotations

import re
import urllib.error

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _needs_onnx():
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)


def test_a_process_without_torch_plays_the_episode_that_load_policy_plays(example, capsys):
    example("serving/without_torch").main()
    found = re.findall(r"^(without torch|with load_policy): (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert [who for who, _ in found] == ["without torch", "with load_policy"]
    assert found[0][1] == found[1][1] and "agent_7" in found[0][1]


def test_actions_come_over_http_and_wrong_requests_are_explained(example, tmp_path, capsys):
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    server = example("serving/http_server")
    server.main()
    total = int(re.fullmatch(r"Return of an episode whose actions came over HTTP: (\d+)\n", capsys.readouterr().out)[1])
    assert total > 15
    from gymnasium import spaces

    from helpers.modules.policies_by_hand import make_policy

    policy = make_policy((spaces.Box(-1.0, 1.0, (3,)), spaces.Box(0.0, 1.0, (2,))))
    with server.serving(server.make_app(policy.export_onnx(tmp_path / "export"))) as address:
        assert server.post(f"{address}/sessions") == {"session": 1}
        answer = server.post(f"{address}/sessions/1/act", {"observations": {"default_agent": [0.1, 0.2, 0.3]}})
        assert [len(action) for action in answer["actions"].values()] == [2]
        for session, observation, status, message in (
            (2, [0.1, 0.2, 0.3], 404, "There is no session 2"),
            (1, [0.1], 422, "must have the shape"),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                server.post(f"{address}/sessions/{session}/act", {"observations": {"default_agent": observation}})
            assert caught.value.code == status and message in caught.value.read().decode()
