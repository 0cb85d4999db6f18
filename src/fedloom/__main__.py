"""`python -m fedloom`, and what `torchrun -m fedloom` starts."""

from fedloom.cli import main

if __name__ == "__main__":
    main()
