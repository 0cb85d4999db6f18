"""Where files are looked for, and where decoded copies of them are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedloom.data.releases import RELEASES, File
from fedloom.errors import FedloomError, choose

Found = dict[str, list[Path]]
"""The files of a layout, by the name they have in its table; a pattern may match many."""


def user_cache() -> Path:
    """The user's cache folder of fedloom, where this system keeps such things."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedloom"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "fedloom"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "fedloom"


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Where data sets are looked for: `folder`, else $FEDLOOM_DATA, else the user's cache."""
    if folder is not None:
        return Path(folder)
    given = os.environ.get("FEDLOOM_DATA")
    return Path(given) if given else user_cache()


def named_place(path: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> Path:
    """A file or folder that somebody names: as it stands or, where there is nothing, within the data folder."""
    there = data_folder(folder) / path
    return there if not Path(path).exists() and there.exists() else Path(path)


def cache_folder() -> Path:
    """Where decoded copies are kept: $FEDLOOM_CACHE, else a folder in the user's cache."""
    given = os.environ.get("FEDLOOM_CACHE")
    return Path(given) if given else user_cache() / "decoded"


def find(folder: Path, file: File) -> list[Path]:
    """The paths of one file of a layout, none where it is missing."""
    if "*" in file.path:
        return sorted(path for path in folder.glob(file.path) if path.is_file())
    return [path for name in (file.path, *file.also) if (path := folder / name).is_file()][:1]


def locate(name: str, folder: str | os.PathLike[str] | None = None, layout: str | None = None) -> tuple[str, Found]:
    """The first layout of `name` whose files are all there, or the one asked for."""
    root, release = data_folder(folder), RELEASES[name]
    if layout is not None and layout not in release.layouts:
        raise choose(f"load({name!r}), layout", layout, release.layouts)
    wanted = release.layouts if layout is None else {layout: release.layouts[layout]}
    for title, files in wanted.items():
        found = {file.path: find(root, file) for file in files}
        if all(found[file.path] or file.optional for file in files):
            return title, {path: paths for path, paths in found.items() if paths}
    raise FedloomError(missing(name, root, layout))


def missing(name: str, root: Path, layout: str | None = None) -> str:
    """What to put where, in one line; where several layouts would do, that of which most is there."""
    layouts = RELEASES[name].layouts if layout is None else {layout: RELEASES[name].layouts[layout]}
    lacking = {title: [f for f in files if not f.optional and not find(root, f)] for title, files in layouts.items()}
    begun = [title for title, files in layouts.items() if len(lacking[title]) < sum(not f.optional for f in files)]
    title = next(iter(begun or lacking))
    names = ", ".join(file.path for file in lacking[title])
    others = [other for other in layouts if other != title]
    alternative = f" (or the files of layout {' or '.join(others)})" if others else ""
    fetch = f"run `fedloom data get {name}`, or put them there" if RELEASES[name].downloads else "put them there"
    return (
        f"{name}: expected {names} in {root}{alternative}, got nothing there: "
        f"{fetch}; FEDLOOM_DATA or folder= names another place"
    )
