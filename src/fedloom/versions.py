"""What a result was made by."""

from __future__ import annotations

import platform

from fedloom import __version__


def versions() -> dict[str, str]:
    import torch  # late: a mistake in a command is told without it

    return {"fedloom": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
