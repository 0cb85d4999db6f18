"""Damaged files by the thousand: every reader, with small files to damage, and the ways to damage them.

`benchmarks/fuzz/fuzz.py` reads 100,000 of them, the tests 500. A reader may take a damaged file for a sound one, or say
what is wrong in a `FedloomError`; anything else is a mistake in it.
"""

from __future__ import annotations

import json
import random
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "report"))

import small_releases as small
import test_readers as readers
import torch
from small_runs import records, write_run

from fedloom import checkpoint
from fedloom.accounting import LEDGER, Ledger
from fedloom.data import natural, tff, wordpiece
from fedloom.errors import FedloomError
from fedloom.experiments import origins, published, runner, schema, stacks, study, study_runs, tune_file
from fedloom.experiments.measures import measure_cell
from fedloom.experiments.selection import Rule
from fedloom.experiments.study_file import read_study
from fedloom.experiments.study_sections import Measure
from fedloom.privacy import Privacy
from fedloom.report.page import write_report

Read = Callable[[Path], object]
Make = Callable[[Path], tuple[Path, Read]]
"""Writes a small sound file into a folder; returns it, and what reads it."""


def vocabulary(folder: Path) -> tuple[Path, Read]:
    pieces = [*wordpiece.SPECIAL, "un", "##fold"]
    return small.put(folder / "vocab.txt", "\n".join(pieces).encode()), wordpiece.read_vocabulary


def hdf5(folder: Path) -> tuple[Path, Read]:
    small.hdf5(folder / "x.h5", {"a": {"tokens": [b"one two", b"three"]}, "b": {"tokens": [b"four"]}})
    return folder / "x.h5", lambda path: list(tff.read_hdf5(path, ("tokens",)))


def word_counts(folder: Path) -> tuple[Path, Read]:
    path = small.put(folder / "x.word_count", b"loop 9\na 3\nuse 1\n")
    return path, lambda path: natural._frequent({"StackOverflow/stackoverflow.word_count": [path]}, "word", 3)


def tag_counts(folder: Path) -> tuple[Path, Read]:
    path = small.put(folder / "x.tag_count", b'{"python": 1, "c": 5, "loops": 1}')
    return path, lambda path: natural._frequent({"StackOverflow/stackoverflow.tag_count": [path]}, "tag", 3)


STATE = {"params": {"fc.weight": torch.ones(3, 4), "fc.bias": torch.zeros(3)}, "round": 3, "rho": (0.5, float("inf"))}


def state_json(folder: Path) -> tuple[Path, Read]:
    checkpoint.save(folder / "round-000003", STATE)
    return folder / "round-000003" / checkpoint.SKELETON, lambda path: checkpoint.load(path.parent)


def state_tensors(folder: Path) -> tuple[Path, Read]:
    """As somebody would write them who knows that they are hashed."""
    checkpoint.save(folder / "round-000003", STATE)

    def read(path: Path) -> object:
        skeleton = path.parent / checkpoint.SKELETON
        document = json.loads(skeleton.read_text()) | {"tensors": checkpoint._digest(path.read_bytes())}
        told = {name: document[name] for name in ("tensors", "skeleton", "notes")}
        document["sha256"] = checkpoint._digest(checkpoint._strict(told))
        skeleton.write_bytes(checkpoint._strict(document))
        return checkpoint.load(path.parent)

    return folder / "round-000003" / checkpoint.TENSORS, read


EXPERIMENT = b"""name = "tiny"
rounds = 3
cohort = 2
seeds = [0, 1]
data = { name = "digits", partition = "dirichlet", clients = 40, alpha = 0.5 }
model = { name = "mlp", hidden = [10] }
algorithms = [{ name = "fedavg", client_lr = 0.1 }, { name = "fedadam", client_lr = 1e-1, server_lr = 0.01 }]
"""
GRID = b"""[tune]
grid = { "algorithm.client_lr" = { decades = [-2, 0] }, batch_size = [10, 20] }
"""
STUDY = b"""id = "small"
paper = "Nobody 2020, table 1"
title = "A table"
experiment.rounds = 3
experiment.cohort = 2
experiment.data = { name = "digits", partition = "iid", clients = 10 }
experiment.model = { name = "logistic" }
experiment.algorithm = { name = "fedavg", client_lr = 0.1 }
axes = [{ name = "rate", key = "algorithm.client_lr", values = [0.1, 0.01] }]
measures = [{ name = "accuracy", kind = "final", scale = 100.0 }]
scales.smoke = { says = "two rounds", set = { rounds = 2 } }
"""
NUMBERS = b"""[[small]]
cell = { rate = "0.1" }
value = 90.5
std = 0.5
"""


def experiment_file(folder: Path) -> tuple[Path, Read]:
    return small.put(folder / "tiny.toml", EXPERIMENT), lambda path: schema.read(path).runs()


def tune_toml(folder: Path) -> tuple[Path, Read]:
    return small.put(folder / "tiny.toml", EXPERIMENT + GRID), tune_file.read_tune


def study_file(folder: Path) -> tuple[Path, Read]:
    return small.put(folder / "small.toml", STUDY), lambda path: study.runs(read_study(path))


def published_file(folder: Path) -> tuple[Path, Read]:
    beside = small.put(folder / "small.toml", STUDY)
    return small.put(folder / "published.toml", NUMBERS), lambda path: published.published(read_study(beside), beside)


def _reported(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        run = write_run(folder / "run", records([0.5, None, 0.75]))
        return run / name, lambda path: write_report([path.parent])

    make.__name__ = f"report_{name.partition('.')[0]}"
    return make


def results_json(folder: Path) -> tuple[Path, Read]:
    measured = [{"cell": {"rate": 0.1}, "measure": "accuracy", "value": 0.5, "std": 0.1}]
    claims = [{"text": "it learns", "passed": True, "held": 1, "of": 2}]
    content = {"id": "small", "seconds": 2.5, "measured": measured, "published": measured, "claims": claims}
    write_run(folder / "run", records([0.5]))
    path = small.put(folder / "results.json", json.dumps(content).encode())
    return path, lambda path: write_report([path.parent])


def _finished(name: str) -> Make:
    """A finished run, of which `resume`, `tune` and `reproduce` make figures."""

    def make(folder: Path) -> tuple[Path, Read]:
        [spec, *_] = schema.read(EXPERIMENT.decode()).runs()
        [planned, *_] = study.runs(read_study(small.put(folder / "small.toml", STUDY)))
        run = write_run(folder / planned.slug, records([0.5, None, 0.75], train_loss=0.5))

        def read(path: Path) -> object:
            result = runner._finished(spec, run)
            told = measure_cell(Measure(name="accuracy", kind="best"), [stacks.outcome(planned, folder)])
            score = Rule("train_loss", "train_loss", None).score(result.rounds, 3)
            return runner.summary_table([result]), result.figures(), told.value, score

        return run / name, read

    make.__name__ = f"finished_{name.partition('.')[0]}"
    return make


def made_json(folder: Path) -> tuple[Path, Read]:
    path = small.put(folder / origins.MADE, b'{"command": "fedloom reproduce small", "seconds": 12.5}')
    return path, lambda path: study_runs.duration(origins.made(path.parent).get("seconds", 0.0))


def privacy_json(folder: Path) -> tuple[Path, Read]:
    privacy = Privacy(1.0, 1e-5, cohort=10)
    Ledger(privacy, 100, folder).charge()
    return folder / LEDGER, lambda path: Ledger(privacy, 100, path.parent).charge()


MADE: list[Make] = [
    *readers.MADE,
    *(vocabulary, hdf5, word_counts, tag_counts, state_json, state_tensors),
    *(experiment_file, tune_toml, study_file, published_file),
    *(_reported("config.toml"), _reported("metrics.jsonl"), _reported("summary.json"), results_json),
    *(_finished("metrics.jsonl"), _finished("summary.json"), made_json, privacy_json),
]

# Damage ---------------------------------------------------------------------------------------------------------------


def truncated(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(8 * len(changed))
        changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def swapped(content: bytes, rng: random.Random) -> bytes:
    """Two blocks change places."""
    a, b, c = sorted(rng.randrange(len(content) + 1) for _ in range(3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def repeated(content: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:b] + content[a:b] * rng.randint(1, 3) + content[b:]


def huge(content: bytes, rng: random.Random) -> bytes:
    """A number of 4 or 8 bytes, in a header more often than not, becomes a very large one."""
    kind = rng.choice([">I", "<I", ">Q", "<Q"])
    top = 2 ** (8 * struct.calcsize(kind)) - 1
    place = rng.randrange(min(len(content), rng.choice([16, 64, len(content)])))
    number = struct.pack(kind, rng.choice([top, top // 2, top // 2 + 1, 2**31, 2**30]))
    return content[:place] + number + content[place + len(number) :]


def other_magic(content: bytes, rng: random.Random) -> bytes:
    return rng.choice([b"\x80\x04\x95", b"PK\x03\x04", b"\x89PNG", b"\0\0\0\0", b"\xef\xbb\xbf"]) + content[4:]


def not_utf8(content: bytes, rng: random.Random) -> bytes:
    return inserted(content, rng, rng.choice([b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\0"]))


def no_number(content: bytes, rng: random.Random) -> bytes:
    """A digit becomes what is no number, or a number beyond all bounds."""
    digits = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
    if not digits:
        return flipped(content, rng)
    place = rng.choice(digits)
    words = [b"nan", b"NaN", b"-inf", b"1e400", b"-1", b"9223372036854775808", b"9" * 5000, b"null", b"true", b"[]"]
    return content[:place] + rng.choice(words) + content[place + 1 :]


def other_kind(content: bytes, rng: random.Random) -> bytes:
    """A whole number becomes something else that JSON and TOML have."""
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", content))
    if not numbers:
        return flipped(content, rng)
    found = rng.choice(numbers)
    words = [b'"y"', b"[1]", b"{}", b"false", b"1e400", b"-1", b"9" * 400, b'"' + b"y" * 5000 + b'"']
    return content[: found.start()] + rng.choice(words) + content[found.end() :]


def nested(content: bytes, rng: random.Random) -> bytes:
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}"), (b"a.", b"")])
    depth = rng.choice([3, 40, 2000, 20_000])
    return inserted(content, rng, opening * depth + b"1" + closing * depth)


def other_word(content: bytes, rng: random.Random) -> bytes:
    """One word of the file takes another one's place."""
    words = [word for word in content.split() if word]
    return content.replace(rng.choice(words), rng.choice(words), 1) if words else content


def inserted(content: bytes, rng: random.Random, what: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + what + content[place:]


DAMAGES = (
    *(truncated, flipped, swapped, repeated, huge, other_magic, not_utf8, no_number),
    *(other_kind, nested, other_word),
)


@dataclass
class Seen:
    """What became of the damaged files: read, refused, and what else there was."""

    read: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)


def fuzz(make: Make, folder: Path, count: int, seed: int = 0) -> Seen:
    """Damage a file so many times and read it each time; each damage depends on the seed and its number alone."""
    path, read = make(folder)
    sound = path.read_bytes()
    seen = Seen()
    for number in range(count):
        rng = random.Random(f"{make.__name__} {seed} {number}")
        content = sound
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            content = rng.choice(DAMAGES)(content or b"\n", rng)
        path.unlink()  # a library that still holds the last one must not take this for it
        path.write_bytes(content)
        try:
            read(path)
            seen.read += 1
        except FedloomError as error:
            seen.refused += 1
            if "\n" in str(error) or len(str(error)) > 2000:
                seen.failures.append(f"{make.__name__} {seed} {number}: a message of several lines, or a long one")
        except Exception as error:
            seen.failures.append(f"{make.__name__} {seed} {number}: {type(error).__name__}: {error}"[:300])
    return seen
