"""Makes the pictures of docs/images anew, with a real training and a real browser.

    python -m tests.project.screens [DIR]

A picture of the demo's output, and of the report of a run of two ranks and the page of one of its
steps. It needs PyTorch and Chromium. They are no test: look at them before they are committed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from .browser import BrowserError, picture
from .terminal import output_of, write_page

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 250_000
_COMMAND = str(Path(sys.executable).parent / "cirron-otel")
_TRAIN = Path(__file__).parent / "train.py"
_COLUMNS = 110
_WIDTH, _STEP = 1080, 530
_FRAME = """<!DOCTYPE html>
<style>body {{ margin: 0 }} iframe {{ border: 0; display: block }}</style>
<iframe src="{page}#step-1" width="{width}" height="{height}"></iframe>
"""


def demo(folder: Path, images: Path) -> None:
    """What the demo says."""
    shown = output_of(
        [_COMMAND, "demo", "--output", "run"], _COLUMNS, folder, "cirron-otel demo --output run"
    )
    page = folder / "demo.html"
    width, height = write_page(shown.replace(f"{ROOT}/", "").replace(f"{folder}/", ""), page)
    _picture(page, images / "demo.png", (width, height))


def report(folder: Path, images: Path) -> None:
    """The report of a run, and one step of it."""
    run = folder / "two-ranks"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    subprocess.run([*command, str(_TRAIN), str(run)], check=True, capture_output=True)
    done = subprocess.run(
        [_COMMAND, "report", run.name, "--html", "report.html", "--json"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    assert len(json.loads(done.stdout)["ranks"]) == 2
    page = folder / "report.html"
    _picture(page, images / "report.png", (_WIDTH, 1240))
    # The browser draws what a fragment leads to in a frame only.
    frame = folder / "frame.html"
    frame.write_text(_FRAME.format(page=page.name, width=_WIDTH, height=_STEP))
    _picture(frame, images / "step.png", (_WIDTH, _STEP))


def _picture(page: Path, image: Path, size: tuple[int, int]) -> None:
    picture(page, image, *size)
    taken = image.stat().st_size
    print(f"{image}: {size[0]} x {size[1]}, {taken:,} bytes")
    if taken > MOST_BYTES:
        raise BrowserError(f"{image.name} is {taken:,} bytes: at most {MOST_BYTES:,} are kept")


def main() -> None:
    """Make them all."""
    images = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else IMAGES
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        try:
            demo(Path(temporary), images)
            report(Path(temporary), images)
        except BrowserError as error:
            sys.exit(f"make screens: {error}")


if __name__ == "__main__":
    main()
