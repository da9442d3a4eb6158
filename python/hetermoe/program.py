#!/usr/bin/env python3
"""Starts the program with torch's libraries, those of the interpreter that runs this file. Needs Python 3.8 alone.

usage: program.py [--torch-dir DIR] COMMAND ...      (DIR: the torch package, in place of the interpreter's)

Beside this file lie bin/hetermoe, its libraries, configs/, and bundle.json, which says for which torch it was built.
"""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE / "bin" / "hetermoe"


class TorchError(Exception):
    """There is no torch, or another one than the program needs: one sentence."""


def torch_version(folder):
    """Of a torch package, without what its build adds (+cu126); empty = there is none."""
    file = pathlib.Path(folder, "version.py")
    found = re.search(r"__version__ = '([^'+]*)", file.read_text()) if file.exists() else None
    return found[1] if found else ""


def torch_folder():
    """Of this interpreter, without importing it; None = it has none."""
    spec = importlib.util.find_spec("torch")
    places = list(spec.submodule_search_locations or []) if spec else []
    return pathlib.Path(places[0]) if places else None


def library_folders(torch):
    """Where the libraries of a torch package lie, and those that it needs."""
    site = pathlib.Path(torch).parent
    folders = [pathlib.Path(torch) / "lib", site / "torch.libs", *sorted(site.glob("nvidia/*/lib"))]
    return [str(folder) for folder in folders if folder.is_dir()]


def checked_torch(torch, python=sys.executable):
    """The folder. Throws TorchError unless it is the torch for which the program was built."""
    facts = HERE / "bundle.json"
    if not facts.exists():
        raise TorchError(f"[hetermoe] {HERE} has no program: install the wheel that ./dev wheel makes, or use a bundle")
    wanted = json.loads(facts.read_text())["torch"]
    install = f"`{python} -m pip install torch=={wanted}` brings it"
    found = torch_version(torch) if torch else ""
    if not found:
        raise TorchError(f"[torch] found none for {python}, expected torch {wanted}. {install}")
    if found != wanted:
        raise TorchError(f"[torch] got torch {found} in {torch}, expected {wanted}, for which this program was built. {install}")
    return torch


def environment(torch):
    """For the program: the loader finds torch's libraries by it."""
    known = os.environ.get("LD_LIBRARY_PATH", "")
    return dict(os.environ, LD_LIBRARY_PATH=":".join([*library_folders(torch), *([known] if known else []), str(HERE / "lib" / "last")]))


def main():
    words, called, torch = sys.argv[1:], sys.argv[0], None
    if words[:1] == ["--called"]:  # how the user called the program, which its messages repeat
        called, words = words[1], words[2:]
    if len(words) > 1 and words[0] == "--torch-dir":
        torch, words = pathlib.Path(words[1]), words[2:]
    try:
        env = environment(checked_torch(torch or torch_folder()))
    except TorchError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    os.execve(PROGRAM, ["hetermoe" if shutil.which("hetermoe") == called else called, *words], env)


if __name__ == "__main__":
    main()
