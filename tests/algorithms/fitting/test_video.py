"""The video of a run."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFont, ImageSequence

from marl_connectors.algorithms.fitting import video
from marl_connectors.algorithms.fitting.video import (
    Clip,
    encoded,
    record_clips,
    record_untrained,
    record_video,
    write_video,
)
from marl_connectors.algorithms.rendering import RenderedEpisode
from marl_connectors.errors import EnvError


def shades(number, height=300, width=960):
    return [np.full((height, width, 3), 5 * i, np.uint8) for i in range(number)]


def pictures_of(path):
    with Image.open(path) as gif:
        return [(frame.info["duration"], np.asarray(frame.convert("RGB"))) for frame in ImageSequence.Iterator(gif)]


class Player:
    """An Algorithm whose episodes have these frames and returns."""

    def __init__(self, returns, frames=None, num_steps=25):
        self.returns, self.frames, self.num_steps = returns, shades(3) if frames is None else frames, num_steps
        self.asked = []

    def render_episodes(self, num_episodes, *, max_frames, max_seconds, seed, explore):
        self.asked.append((num_episodes, seed, explore))
        return [RenderedEpisode(self.frames[:max_frames], self.num_steps, self.returns)] * num_episodes


def captions(returns, num_steps=25):
    return [clip.caption for clip in record_clips(Player(returns, num_steps=num_steps), ["a", "b"], seed=0)]


def test_a_caption_has_the_return_of_the_episode():
    assert captions({"default_policy": -31.24}) == ["a: return -31.2", "b: return -31.2"]


def test_a_caption_has_the_returns_of_some_modules():
    assert captions({"red": 1.0, "green": -12.34})[0] == "a: return red 1.00, green -12.3"
    assert captions({f"m{i}": 0.0 for i in range(6)})[0] == "a: return m0 0, m1 0, m2 0, m3 0 and 2 more"


def test_a_caption_says_that_an_episode_was_stopped():
    assert captions({}, num_steps=1000)[0] == "a: stopped after 1,000 steps"


def test_a_gif_is_narrowed_and_each_last_frame_stays(tmp_path):
    write_video([Clip("one line", shades(3)), Clip("another", shades(2))], tmp_path / "new" / "v.gif")
    pictures = pictures_of(tmp_path / "new" / "v.gif")
    assert [duration for duration, _ in pictures] == [100, 100, 1200, 100, 1200]
    assert {pixels.shape for _, pixels in pictures} == {(150 + 24, 480, 3)}  # 18 pixels a line, and a margin of 6
    assert [int(pixels[-1, 0, 0]) for _, pixels in pictures] == [0, 5, 10, 0, 5]


def test_the_caption_is_written_above_the_frame(tmp_path):
    write_video([Clip("before training: return -31.2", shades(1))], tmp_path / "v.gif")
    ((_, pixels),) = pictures_of(tmp_path / "v.gif")
    strip = pixels[:24]
    assert strip.max() == 255 and strip.min() < 50
    assert (pixels[24:] == 0).all()


def test_a_small_picture_is_made_as_wide_as_a_caption_needs(tmp_path):
    write_video([Clip("x", [np.zeros((7, 9, 3), np.uint8)])], tmp_path / "v.gif")
    with Image.open(tmp_path / "v.gif") as gif:
        assert gif.size == (27 * 9, 27 * 7 + 24)  # 27 is the least factor for 240 pixels


def test_long_captions_have_several_lines_and_lose_no_word():
    font = ImageFont.load_default(14)
    text = "after training, episode 2: return adversary -12.3, agent 4.56"
    lines = video._wrapped(text, font, 200)
    assert len(lines) > 1 and " ".join(lines) == text
    assert all(font.getlength(line) <= 200 for line in lines)
    assert video._wrapped("one", font, 1) == ["one"]


@pytest.mark.slow
def test_a_large_gif_gets_smaller_frames(monkeypatch):
    noise = np.random.default_rng(0).integers(0, 255, (100, 600, 3), np.uint8)
    clips = [Clip("x", [noise])]
    full = encoded(clips)
    monkeypatch.setattr(video, "MAX_BYTES", len(full) - 1)
    smaller = encoded(clips)
    assert len(smaller) < len(full)
    monkeypatch.setattr(video, "MAX_BYTES", 0)
    assert pixels_wide(encoded(clips)) == 240 < pixels_wide(smaller) == 336  # 0.7 * 480


def pixels_wide(film):
    clip = video.decoded(film)
    return clip.frames[0].shape[1]


def test_the_video_begins_with_the_untrained_modules(tmp_path):
    untrained = tmp_path / "untrained.gif"
    untrained.write_bytes(record_untrained(Player({"x": -5.0}, shades(2)), seed=3))
    assert video.decoded(untrained.read_bytes()).caption == "before training: return -5.00"
    player = Player({"x": 7.0}, shades(3))
    written = record_video(player, tmp_path / "v.gif", seed=3, label="after training, ", untrained=untrained)
    assert written == "" and player.asked == [(3, 3, None)]
    assert [duration for duration, _ in pictures_of(tmp_path / "v.gif")] == [100, 1200] + 3 * [100, 100, 1200]
    assert record_video(player, tmp_path / "v.gif", seed=3, untrained=tmp_path / "missing.gif") == ""
    assert len(pictures_of(tmp_path / "v.gif")) == 9


@pytest.mark.parametrize("explore", [None, False, True])
def test_the_episodes_of_a_video_act_as_asked(tmp_path, explore):
    player = Player({"x": 7.0})
    assert record_video(player, tmp_path / "v.gif", seed=3, explore=explore) == ""
    assert player.asked == [(3, 3, explore)]


@pytest.mark.parametrize("frame", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))])
def test_what_is_no_picture_is_refused(tmp_path, frame):
    with pytest.raises(EnvError, match="pictures"):
        write_video([Clip("x", [frame])], tmp_path / "v.gif")
    assert not (tmp_path / "v.gif").exists()
    assert record_untrained(Player({}, [frame]), seed=0) == b""


def test_an_environment_that_fails_to_render_costs_the_video_only(tmp_path):
    class Blind:
        def render_episodes(self, num_episodes, **settings):
            raise EnvError("env: render failed:\nno display")

    assert record_video(Blind(), tmp_path / "v.gif", seed=0) == "No video: env: render failed: no display"
    assert record_untrained(Blind(), seed=0) == b""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its reader leaves files open
def test_an_mp4_has_the_same_frames_and_even_sides(tmp_path):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    write_video([Clip("one line", shades(3, 301, 479)), Clip("another", shades(2, 99, 99))], tmp_path / "v.mp4")
    frames = imageio_ffmpeg.read_frames(str(tmp_path / "v.mp4"))
    about = next(frames)
    assert (about["size"], about["fps"], about["codec"]) == ((480, 326), 10.0, "h264")  # 301 + 24, and one more
    assert len(list(frames)) == 2 + 12 + 1 + 12  # the last frame of each clip stays for 1.2 seconds
    assert [path.name for path in tmp_path.iterdir()] == ["v.mp4"]
