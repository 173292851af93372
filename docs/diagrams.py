"""Draws the pictures of the documentation that are diagrams: ``python docs/diagrams.py`` writes docs/images/*.svg.

They are 400 units wide, so that their text can be read on a phone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).parent / "images"
WIDTH = 400
INK, GREY = "#1f2430", "#5d6675"
BLUE, GREEN, ORANGE, PURPLE, PALE = "#d9e8fb", "#d8f0dd", "#fde6cc", "#e9defa", "#eef0f4"


class Drawing:
    """An SVG picture that is drawn from top to bottom."""

    def __init__(self, height: int, title: str):
        """Begins a picture of this height. The title is what screen readers read."""
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        ]

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        anchor: str = "start",
        size: int = 13,
        colour: str = INK,
        bold: bool = False,
    ) -> None:
        """Writes one line with its baseline at ``y``."""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{weight}>'
            f"{escape(words)}</text>"
        )

    def box(
        self, x: float, y: float, width: float, height: float, colour: str, title: str = "", lines: Iterable[str] = ()
    ) -> None:
        """Draws a box with a title and smaller lines, which are centred."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{colour}" stroke="{GREY}" '
            'stroke-width="0.8"/>'
        )
        lines = list(lines)
        top = y + (height - 17 * (len(lines) + bool(title))) / 2 + 13
        if title:
            self.text(x + width / 2, top, title, anchor="middle", bold=True)
            top += 17
        for i, line in enumerate(lines):
            self.text(x + width / 2, top + 17 * i, line, anchor="middle", size=12)

    def arrow(self, *points: tuple[float, float], label: str = "", beside: str = "start", dashed: bool = False) -> None:
        """Draws a line through points, with a tip at its end and a label beside its first part."""
        path = "M" + "L".join(f"{x} {y}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{GREY}" stroke-width="1.5" marker-end="url(#tip)"{dash}/>'
        )
        if label:
            (x, y), (x2, y2) = points[:2]
            shift = 9 if beside == "start" else -9
            self.text((x + x2) / 2 + shift, (y + y2) / 2 + 4, label, anchor=beside, size=12, colour=GREY)

    def written(self) -> str:
        """Returns the picture's source."""
        return "\n".join([*self._parts, "</svg>", ""])


Stage = tuple[str, str, list[str], str]
"""A box of a flow: its colour, title and lines, and the label of the arrow that leaves it."""


def flow(title: str, stages: list[Stage], last_line: str) -> Drawing:
    """Draws stages below one another, and a line of text at the end."""
    heights = [16 + 17 * (len(lines) + 1) for _, _, lines, _ in stages]
    d = Drawing(sum(heights) + 30 * len(stages) + 40, title)
    y = 16
    for i, ((colour, name, lines, label), height) in enumerate(zip(stages, heights, strict=True)):
        d.box(30, y, 340, height, colour, name, lines)
        y += height
        if i < len(stages) - 1:
            d.arrow((80, y), (80, y + 30), label=label)
            y += 30
    d.text(WIDTH / 2, y + 28, last_line, anchor="middle", size=12, colour=GREY)
    return d


def acting() -> Drawing:
    """From observations to actions, with the shapes of 8 copies of an environment with 3 agents."""
    stages: list[Stage] = [
        (
            GREEN,
            "8 copies of an environment",
            ["{agent: observation} of 3 agents each"],
            "8 × 3 observations of 18 numbers",
        ),
        (PALE, "episodes", ["keep all that happens; pieces read and write them"], "24 rows"),
        (
            BLUE,
            "env-to-module pipeline",
            ["your pieces, then observations, module ids, tensors"],
            "{obs: [24, 18]} for each module",
        ),
        (ORANGE, "MultiRLModule", ["each module computes the rows of its agents"], "{action_dist_inputs: [24, 5]}"),
        (BLUE, "module-to-env pipeline", ["draws actions; your pieces; back to agents"], "24 actions"),
        (GREEN, "8 copies of an environment", ["step({agent: action}), then from the top again"], ""),
    ]
    title = "How observations become actions: environments, env-to-module pipeline, modules, module-to-env pipeline"
    return flow(title, stages, "Actions and module outputs are kept in the episodes, too.")


def learning() -> Drawing:
    """From episodes to new parameters."""
    rows = [
        "your pieces, then a row for each agent step:",
        "obs, actions, rewards, ends, log-probabilities,",
        "sorted by module; advantages and value targets",
    ]
    stages: list[Stage] = [
        (PALE, "episodes", ["whole ones, or chunks of ongoing ones"], "any number of agents and steps"),
        (BLUE, "learner pipeline", rows, "{obs: [B, 18], advantages: [B], …}"),
        (PALE, "minibatches", ["shuffled rows, num_epochs times"], ""),
        (ORANGE, "forward_train and the loss", ["alike modules at once, as one batched network"], "gradients, clipped"),
        (PURPLE, "optimizers", ["Adam, or yours, for each module"], ""),
    ]
    title = "How episodes become new parameters: learner pipeline, train batch, minibatches, loss, gradients"
    return flow(title, stages, "The new parameters act in the next sample.")


def lanes() -> Drawing:
    """How agents of two sub-environments share the rows of a rollout, with a death and an agent that joins."""
    d = Drawing(330, "Lanes and rows: each agent of a sub-environment has a column; rows are its steps")
    top, left, cell = 84, 112, 62
    d.text(200, 26, "A lane for each agent, a row for each step", anchor="middle", bold=True)
    names = [("a", "env 0"), ("b", "env 0"), ("a", "env 1"), ("b", "env 1")]
    for i, (agent, env) in enumerate(names):
        d.text(left + cell * i + cell / 2, 52, f"agent {agent}", anchor="middle", size=12)
        d.text(left + cell * i + cell / 2, 68, env, anchor="middle", size=12, colour=GREY)
    lives = {  # of each lane: the colour of each row
        0: [GREEN] * 6,
        1: [GREEN] * 3 + [PALE] * 2 + [BLUE],
        2: [GREEN] * 4 + [ORANGE] * 2,
        3: [GREEN] * 4 + [ORANGE] * 2,
    }
    for i, colours in lives.items():
        for row, colour in enumerate(colours):
            d.box(left + cell * i + 3, top + 27 * row, cell - 6, 23, colour)
    for row in range(6):
        d.text(left - 14, top + 27 * row + 16, f"step {row}", anchor="end", size=12, colour=GREY)
    d.text(left + cell * 1.5, top + 27 * 3 + 16, "free", anchor="middle", size=12, colour=GREY)
    d.text(left + cell * 1.5, top + 27 * 5 + 16, "agent c", anchor="middle", size=12)
    for i in (2, 3):
        d.text(left + cell * (i + 0.5), top + 27 * 4 + 16, "next", anchor="middle", size=12)
    d.text(20, 272, "Agent b of env 0 dies after step 2; agent c joins at step 5.", size=12)
    d.text(20, 290, "In env 1, the next episode begins at step 4.", size=12)
    d.text(20, 308, "An episode is a view of its lanes: nothing is copied.", size=12)
    return d


def buckets() -> Drawing:
    """How modules of one architecture are computed together."""
    d = Drawing(336, "Buckets: modules of one architecture, whose parameters are the rows of one matrix")
    d.text(200, 26, "Modules of one architecture are a bucket", anchor="middle", bold=True)
    for i, name in enumerate(("red_0", "red_1", "red_2")):
        d.box(20, 48 + 40 * i, 90, 32, ORANGE, name)
        d.arrow((110, 64 + 40 * i), (160, 64 + 40 * i))
        d.box(162, 48 + 40 * i, 218, 32, PALE, "", ["its P parameters"])
    d.text(271, 186, "one matrix [3, P]", anchor="middle", size=12, colour=GREY)
    d.arrow((271, 194), (271, 220))
    d.box(162, 222, 218, 48, BLUE, "one batched network", ["observations [3, L, 18]"])
    d.box(20, 222, 90, 48, PURPLE, "blue", ["of its own"])
    d.text(20, 298, "L: the rows of the module with the most rows. Those with", size=12)
    d.text(20, 316, "fewer rows are padded, or computed one by one.", size=12)
    return d


def cluster() -> Drawing:
    """What runs where with remote env runners and learners."""
    d = Drawing(362, "Remote env runners and learners: episodes go from runners to learners, parameters back")
    d.box(110, 16, 180, 50, PURPLE, "Algorithm", ["your process"])
    for i in range(3):
        d.box(16 + 126 * i, 120, 116, 62, GREEN, f"env runner {i + 1}", ["its copies of the", "environment"])
        d.arrow((200, 66), (74 + 126 * i, 118), dashed=True)
    for i in range(2):
        d.box(60 + 150 * i, 244, 130, 50, ORANGE, f"learner {i + 1}", ["its episodes"])
    for i, j in ((0, 0), (1, 0), (1, 1), (2, 1)):
        d.arrow((74 + 126 * i, 182), (125 + 150 * j, 242))
    d.text(392, 218, "episodes", anchor="end", size=12, colour=GREY)
    d.arrow((190, 269), (208, 269))
    d.arrow((210, 269), (192, 269))
    d.text(200, 318, "In each step the learners add up their gradients,", anchor="middle", size=12)
    d.text(200, 335, "so that all have the same parameters.", anchor="middle", size=12)
    d.text(200, 352, "Runners and learners that are lost are replaced.", anchor="middle", size=12)
    d.text(392, 90, "parameters", size=12, colour=GREY, anchor="end")
    return d


DRAWINGS = {"acting": acting, "learning": learning, "lanes": lanes, "buckets": buckets, "cluster": cluster}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (IMAGES / f"{name}.svg").write_text(draw().written(), encoding="utf-8")
