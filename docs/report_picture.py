"""Record a run and draw the beginning of its report in a terminal as docs/report.svg.

    feedline demo-data demo-data
    python docs/report_picture.py demo-data

The step sleeps for 10 ms, as if a GPU computed, which one worker cannot keep up with.
"""

import io
import os
import pty
import re
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

import feedline

PICTURE = Path(__file__).resolve().parent / "report.svg"
COLUMNS, LINES = 100, 34
STEP_S = 0.010


def in_terminal(command: list[str], folder: str) -> str:
    """What a command prints in a terminal, with its colours."""
    os.chdir(folder)
    os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS))
    printed = []

    def read(terminal: int) -> bytes:
        printed.append(os.read(terminal, 65536))
        return printed[-1]

    status = os.waitstatus_to_exitcode(pty.spawn(command, read))
    if status not in (0, 1):  # 1: it recommends something
        sys.exit(f"{' '.join(command)} exited with status {status}")
    return b"".join(printed).decode()


def main() -> None:
    """Write the picture."""
    data = feedline.ImageFolder(f"{sys.argv[1]}/train", transform=feedline.TrainCrop())
    loader = feedline.DataLoader(data, 32, schedule="160x5,224x5", num_workers=1)
    with tempfile.TemporaryDirectory() as folder, loader:
        for _ in range(loader.epochs):
            for _ in feedline.watch(loader, run=f"{folder}/runs/demo"):
                time.sleep(STEP_S)
        text = in_terminal(["feedline", "report", "runs/demo"], folder)
    lines = text.replace(f"{Path(data.root).parents[1]}/", "").splitlines()[:LINES]
    console = Console(
        width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True
    )
    console.print(Text.from_ansi("\n".join(lines)))
    svg = console.export_svg(title="feedline report runs/demo")
    # No page asks another server for a font.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    main()
