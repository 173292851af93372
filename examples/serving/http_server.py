"""How does a trained policy answer over HTTP, for clients in any language?

The script trains a policy for CartPole, exports it, and serves the export with FastAPI. Each client plays its own
episodes: it begins a session, posts observations, and gets actions. The script asks the server for the actions of one
episode, and prints the episode's return, which is more than 15. It takes about 20 seconds.

It needs more packages, from the root of the repository: pip install -c constraints.txt -e ".[serving]". To serve an
export that exists, which needs neither torch nor marl-connectors but fastapi, uvicorn, numpy and onnxruntime:

    python examples/serving/http_server.py runs/CartPole-v1-shared-seed0/export
    curl -X POST localhost:8000/sessions
    curl -X POST localhost:8000/sessions/1/act -H "content-type: application/json" \\
        -d '{"observations": {"default_agent": [0.01, 0.02, 0.03, 0.04]}}'
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

MAX_SESSIONS = 1000
MAX_BYTES = 1_000_000
"""The largest number of sessions at a time, and of bytes of a request, which bounds the rows of a batch."""


class Step(BaseModel):
    """What the agents of an environment observe, with their rewards since their last actions, and their infos."""

    observations: dict[str, Any]
    rewards: dict[str, float] | None = None
    infos: dict[str, dict[str, Any]] | None = None


def load_runner(folder: Path) -> type:
    """Returns the class in the onnx_policy.py beside an export."""
    spec = importlib.util.spec_from_file_location("onnx_policy", folder / "onnx_policy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.OnnxPolicy


def make_app(folder: Path) -> FastAPI:
    """Returns an application with a policy for each session, since a policy remembers the steps of its episode."""
    app, policy = FastAPI(title="An exported policy"), load_runner(folder)(folder)
    sessions: dict[int, tuple[Any, threading.Lock]] = {}
    numbers = itertools.count(1)

    @app.middleware("http")
    async def limited(request: Request, call_next: Any) -> Any:
        length = request.headers.get("content-length", "")
        if request.method == "POST" and not (length.isdecimal() and int(length) <= MAX_BYTES):
            return JSONResponse({"detail": f"A request must say its length, of at most {MAX_BYTES} bytes."}, 413)
        return await call_next(request)

    def session_of(number: int) -> tuple[Any, threading.Lock]:
        if number not in sessions:
            raise HTTPException(404, f"There is no session {number}. POST /sessions begins one.")
        return sessions[number]

    @app.get("/contract")
    def contract() -> dict[str, Any]:
        return policy.contract

    @app.post("/sessions")
    def begin() -> dict[str, int]:
        if len(sessions) >= MAX_SESSIONS:
            raise HTTPException(429, f"There are {MAX_SESSIONS} sessions already. DELETE /sessions/N ends one.")
        number = next(numbers)
        sessions[number] = policy.session(), threading.Lock()
        return {"session": number}

    @app.post("/sessions/{number}/act")
    def act(number: int, step: Step) -> dict[str, Any]:
        own, lock = session_of(number)
        try:
            with lock:
                actions = own.actions(step.observations, rewards=step.rewards, infos=step.infos)
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        return {"actions": {agent: as_json(action) for agent, action in actions.items()}}

    @app.post("/sessions/{number}/reset")
    def reset(number: int) -> dict[str, int]:
        own, lock = session_of(number)
        with lock:
            own.reset()
        return {"session": number}

    @app.delete("/sessions/{number}")
    def end(number: int) -> dict[str, int]:
        session_of(number)
        sessions.pop(number, None)
        return {"session": number}

    return app


def as_json(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: as_json(part) for key, part in action.items()}
    return [as_json(part) for part in action] if isinstance(action, tuple) else np.asarray(action).tolist()


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serves an application in a thread, on any free port. Yields the address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield "http://{}:{}".format(*server.servers[0].sockets[0].getsockname()[:2])
    finally:
        server.should_exit = True
        thread.join()


def post(address: str, body: Any = None) -> Any:
    """Posts JSON, as a client in any language would, and returns the JSON of the answer."""
    content = json.dumps(body).encode()
    request = urllib.request.Request(address, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def play(address: str) -> float:
    """Returns the return of an episode of CartPole, whose actions come from a server."""
    import gymnasium as gym

    session = f"{address}/sessions/{post(f'{address}/sessions')['session']}"
    env, total, over = gym.make("CartPole-v1"), 0.0, False
    observation, _ = env.reset(seed=1)
    while not over:
        answer = post(f"{session}/act", {"observations": {"default_agent": observation.tolist()}})
        observation, reward, terminated, truncated, _ = env.step(answer["actions"]["default_agent"])
        total, over = total + float(reward), terminated or truncated
    return total


def main() -> None:
    from marl_connectors import PPOConfig, load_policy

    config = PPOConfig().environment("CartPole-v1").training(train_batch_size_per_learner=1000, lr=1e-3)
    algo = config.build_algo()
    for _ in range(3):
        algo.train()
    with tempfile.TemporaryDirectory() as folder:
        policy = load_policy(algo.save_to_path(Path(folder, "checkpoint")))
        with serving(make_app(policy.export_onnx(Path(folder, "export")))) as address:
            print(f"Return of an episode whose actions came over HTTP: {play(address):.0f}")
    algo.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvicorn.run(make_app(Path(sys.argv[1])))
    else:
        main()
