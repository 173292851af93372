"""Draws discs, rings and bars into numpy arrays."""

from __future__ import annotations

import numpy as np

__all__ = ["BLUE", "GREEN", "GREY", "INK", "PALETTE", "RED", "WHITE", "YELLOW", "Canvas", "Colour"]

Colour = tuple[int, int, int]

WHITE: Colour = (255, 255, 255)
INK: Colour = (60, 64, 72)
GREY: Colour = (214, 217, 222)
BLUE: Colour = (46, 109, 180)
RED: Colour = (205, 70, 60)
GREEN: Colour = (80, 160, 90)
YELLOW: Colour = (232, 180, 60)
PALETTE: tuple[Colour, ...] = (
    BLUE,
    YELLOW,
    GREEN,
    RED,
    (130, 90, 170),
    (60, 170, 180),
    (230, 130, 60),
    (200, 110, 160),
)


class Canvas:
    """A picture to draw on.

    Attributes:
        pixels: ``[height, width, 3]`` uint8.
    """

    def __init__(self, height: int, width: int, colour: Colour = WHITE) -> None:
        self.pixels = np.empty((height, width, 3), np.uint8)
        self.pixels[...] = colour

    def bar(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        """Draws a filled rectangle with its upper left corner at ``x``, ``y``, as far as it is inside the canvas."""
        left, top = max(round(x), 0), max(round(y), 0)
        self.pixels[top : max(round(y + height), 0), left : max(round(x + width), 0)] = colour

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """Draws a filled circle with smooth edges around ``x``, ``y``."""
        left, top = max(int(x - radius) - 1, 0), max(int(y - radius) - 1, 0)
        part = self.pixels[top : max(int(y + radius) + 3, 0), left : max(int(x + radius) + 3, 0)]
        rows, columns = np.ogrid[top : top + part.shape[0], left : left + part.shape[1]]
        cover = np.clip(radius + 0.5 - np.hypot(rows - y, columns - x), 0.0, 1.0)[..., None]
        part[...] = np.rint((1.0 - cover) * part + cover * np.array(colour, float))

    def ring(self, x: float, y: float, radius: float, colour: Colour, *, inside: Colour = WHITE) -> None:
        """Draws a circle with a line of 2 pixels."""
        self.disc(x, y, radius, colour)
        self.disc(x, y, radius - 2.0, inside)
