"""EnvAdapter, the base of adapters that hold one environment or one VectorEnv."""

from __future__ import annotations

from typing import Any

from marl_connectors.typing import AgentID


class EnvAdapter:
    """One environment of another API, with the methods of a parallel or of a natively batched environment.

    Subclasses add spaces, ``reset`` and ``step``.

    Attributes:
        env: The environment.
        agents: The live agents; empty before the reset.
    """

    __slots__ = ("agents", "env")

    def __init__(self, env: Any):
        """Wraps an environment, which need not have been reset."""
        self.env = env
        self.agents: list[AgentID] = []

    @property
    def unwrapped(self) -> Any:
        """The environment without any wrappers."""
        return self.env.unwrapped

    @property
    def metadata(self) -> dict[str, Any]:
        """The environment's metadata."""
        return self.env.metadata

    @property
    def render_mode(self) -> str | None:
        """The environment's render mode, or None."""
        return getattr(self.env, "render_mode", None)

    def render(self) -> Any:
        """Returns what the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def user_env(env: Any) -> Any:
    """Returns an environment as the user made it, without the library's adapter."""
    return env.env if isinstance(env, EnvAdapter) else env
