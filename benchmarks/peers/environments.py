"""Makes the peers' virtual environments, one for each, outside the repository.

    python environments.py [PEER ...] [--home FOLDER]

They lie in `--home`, else `$FEDLOOM_PEERS`, else ~/.cache/fedloom-peers. One that is complete is left as it is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from workloads import HOME

TORCH = ("torch==2.13.0",)
"""First and pinned: an open range takes a build with gigabytes of CUDA."""

STEPS: dict[str, tuple[tuple[str, ...], ...]] = {
    "flower": (TORCH, ("flwr[simulation]==1.41.*",)),
    "pfl": (TORCH, ("pfl==0.6.0",)),
    "fedjax": (("fedjax==0.0.17",),),
    # without what it asks for: it wants torchvision, which brings another torch, and uses nothing of it here
    "fedlab": (TORCH, ("pandas", "scikit-learn", "pynvml", "munch", "pillow", "tqdm"), ("--no-deps", "fedlab==1.3.0")),
}
"""What is installed, one `pip install` after the other."""


def python(peer: str, home: Path = HOME) -> Path:
    """The interpreter of a peer's environment."""
    return home / peer / "bin" / "python"


def complete(peer: str, home: Path = HOME) -> bool:
    """Whether the environment was made to its end."""
    return (home / peer / ".complete").exists()


def make(peer: str, home: Path = HOME) -> None:
    """The environment of one peer; pfl supports Python up to 3.12."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", home / peer], check=True)
    for packages in STEPS[peer]:
        subprocess.run([python(peer, home), "-m", "pip", "install", "--quiet", *packages], check=True)
    (home / peer / ".complete").touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(STEPS)}; all when none is named")
    parser.add_argument("--home", type=Path, default=HOME)
    given = parser.parse_args()
    if unknown := set(given.peers) - STEPS.keys():
        parser.error(f"expected some of {', '.join(STEPS)}, got {', '.join(sorted(unknown))}")
    for peer in given.peers or STEPS:
        if complete(peer, given.home):
            print(f"{peer}: there already")
        else:
            print(f"{peer}: installing", flush=True)
            make(peer, given.home)


if __name__ == "__main__":
    main()
