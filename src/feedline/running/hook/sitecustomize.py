"""Start of a Python program under `feedline run`. Python imports this module before the program.

Guarantees: the folder of this module is not left on the search path, and the sitecustomize that
Python would import without it is imported. A failure never stops the program.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def start() -> None:
    """Prepare this process for feedline, if it belongs to a program under `feedline run`."""
    if os.environ.get("FEEDLINE_RUN"):  # empty in feedline's own workers
        try:
            from feedline.running.start import start_in_process

            start_in_process()
        except Exception as error:
            print(
                f"feedline run: torch's DataLoader is not replaced: "
                f"{type(error).__name__}: {error}",
                file=sys.stderr,
            )


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
start()
_own = sys.modules.pop(__name__)
try:
    __import__(__name__)  # the next one on the search path, if any
except ModuleNotFoundError as error:
    if error.name != __name__:
        raise
    sys.modules[__name__] = _own
