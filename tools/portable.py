"""What a bundle and a wheel share: the program as it runs on another machine, with its libraries and configurations."""
import json
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python" / "hetermoe"))
import program  # noqa: E402

# What every machine with Python and torch has by itself, and must be its own. All else goes along.
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|cuda))\.so.*")

# Torch brings its own, which must be the only one: a second pool of threads would compete with it. Some builds of torch give
# it another name; then this one is needed. So the starter has it looked for last.
OPENMP = "libgomp.so"


def libraries_of(executable):
    """{name: path} of those that go along, with what these need themselves. Torch's are not found here: a portable program
    does not know where they are."""
    out = subprocess.run(["ldd", str(executable)], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", out, re.M))
    return {name: path for name, path in found.items() if not SYSTEM.fullmatch(name)}


def cached(build, key):
    """An entry of CMakeCache.txt."""
    return re.search(rf"^{key}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)[1]


def torch_of(build):
    """Version of the torch that the build was made with."""
    return program.torch_version(cached(build, "TORCH_DIR"))


def commit_of(source):
    run = subprocess.run(["git", "-C", str(source), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return run.stdout.strip() or "unknown"


def put(source, build, folder, executables):
    """Fills a folder with bin/, lib/, configs/, the starter, and bundle.json. executables: {name in the build: name there}."""
    for name in ("bin", "lib/last"):
        (folder / name).mkdir(parents=True)
    for built, name in executables.items():
        shutil.copy2(build / built, folder / "bin" / name)
        for library, path in libraries_of(build / built).items():
            shutil.copy2(path, folder / "lib" / ("last" if library.startswith(OPENMP) else "") / library)
    shutil.copytree(source / "configs", folder / "configs")
    shutil.copy2(source / "python" / "hetermoe" / "program.py", folder)
    (folder / "bundle.json").write_text(json.dumps({"commit": commit_of(source), "torch": torch_of(build)}) + "\n")
