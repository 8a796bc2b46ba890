"""Record a run and draw the beginning of its report in a terminal as docs/report.svg.

    feedline demo-data demo-data
    python docs/report_picture.py demo-data

The step sleeps for 10 ms, as if a GPU computed, so that decoding is the bottleneck.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

import feedline

PICTURE = Path(__file__).parent / "report.svg"
COLUMNS, LINES = 100, 34
STEP_S = 0.010


def main() -> None:
    """Write the picture."""
    data = feedline.ImageFolder(f"{sys.argv[1]}/train", transform=feedline.TrainCrop())
    loader = feedline.DataLoader(data, 32, schedule="160x5,224x5", num_workers=2)
    with tempfile.TemporaryDirectory() as folder, loader:
        for _ in range(loader.epochs):
            for _ in feedline.watch(loader, run=f"{folder}/runs/demo"):
                time.sleep(STEP_S)
        report = subprocess.run(
            ["feedline", "report", "runs/demo"],
            cwd=folder,
            env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)},
            stdout=subprocess.PIPE,
            text=True,
            check=False,  # a finding is status 1
        )
    lines = report.stdout.splitlines()[:LINES]
    console = Console(
        width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True
    )
    console.print(Text.from_ansi("\n".join(lines)))
    svg = console.export_svg(title="feedline report runs/demo")
    # No page asks another server for a font.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    main()
