"""The program: `fedloom`, `python -m fedloom`, and what `torchrun -m fedloom` starts."""

from __future__ import annotations

from typing import NoReturn

from fedloom.exits import answered, unheard


def main() -> NoReturn:
    """From its first import to its end a signal has a line and a code of ours."""
    try:
        with answered():
            from fedloom.cli import main as program

            program()
    finally:
        unheard()


if __name__ == "__main__":
    main()
