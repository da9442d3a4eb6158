#!/usr/bin/env python3
"""Makes a wheel: `pip install` brings the program and the Python functions of python/hetermoe. Torch is a requirement of it.

usage: wheel.py SOURCE_DIR BUILD_DIR FOLDER      (./dev wheel builds first)
"""
import base64
import hashlib
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import portable

# The oldest C library of a distribution whose libstdc++ has these symbols, as auditwheel has it: manylinux_2_28 is of gcc 8,
# 2_31 of gcc 10 (Ubuntu 20.04), 2_34 of gcc 11 (RHEL 9), 2_35 of gcc 12 (Ubuntu 22.04), 2_39 of gcc 14 (Ubuntu 24.04).
LIBRARY_OF_SYMBOLS = [((3, 4, 25), 28), ((3, 4, 28), 31), ((3, 4, 29), 34), ((3, 4, 30), 35), ((3, 4, 33), 39)]

METADATA = """Metadata-Version: 2.1
Name: hetermoe
Version: {version}
Summary: Plans, simulates and runs the training of Mixture-of-Experts models on clusters that mix newer and older GPUs
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: torch=={torch}
Description-Content-Type: text/markdown

"""
KIND = """Wheel-Version: 1.0
Generator: hetermoe
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """[console_scripts]
hetermoe = hetermoe.program:main
"""


def needed_symbols(file, library):
    """Versions of symbols that a binary needs, as tuples of numbers. library: GLIBC, GLIBCXX."""
    out = subprocess.run(["readelf", "--version-info", "--wide", str(file)], capture_output=True, text=True, check=True).stdout
    needs = out.partition("Version needs section")[2]
    return [tuple(map(int, text.split("."))) for text in re.findall(rf"Name: {library}_([\d.]+)", needs)]


def oldest_library(files):
    """x of manylinux_2_x: the C library that a machine needs at least. Exits where no distribution is known to do."""
    c_library = max((version[1] for file in files for version in needed_symbols(file, "GLIBC")))
    symbols = max((version for file in files for version in needed_symbols(file, "GLIBCXX")), default=(0,))
    for known, of_symbols in LIBRARY_OF_SYMBOLS:
        if symbols <= known:
            return max(c_library, of_symbols)
    sys.exit(f"wheel: got symbols GLIBCXX_{'.'.join(map(str, symbols))}, expected at most those of gcc 14: add a row to "
             f"LIBRARY_OF_SYMBOLS in tools/wheel.py")


def write_metadata(source, build, root, version, tag):
    info = root / f"hetermoe-{version}.dist-info"
    info.mkdir()
    readme = (source / "README.md").read_text()
    (info / "METADATA").write_text(METADATA.format(version=version, torch=portable.torch_of(build)) + readme)
    (info / "WHEEL").write_text(KIND.format(tag=tag))
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    shutil.copy2(source / "LICENSE", info)
    return info / "RECORD"


def record_of(root, record):
    """The list of all files with their hashes, the list itself without."""
    lines = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        data = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path.relative_to(root)},sha256={digest},{len(data)}\n")
    return "".join(lines) + f"{record.relative_to(root)},,\n"


def make(source, build, folder):
    version = portable.cached(build, "CMAKE_PROJECT_VERSION")
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place)
        package = root / "hetermoe"
        portable.put(source, build, package, {"hetermoe_portable": "hetermoe"})
        shutil.copy2(source / "python" / "hetermoe" / "__init__.py", package)
        binaries = [*(package / "bin").iterdir(), *(package / "lib").rglob("*.so*")]
        tag = f"py3-none-manylinux_2_{oldest_library(binaries)}_{platform.machine()}"
        record = write_metadata(source, build, root, version, tag)
        record.write_text(record_of(root, record))
        folder.mkdir(parents=True, exist_ok=True)
        wheel = folder / f"hetermoe-{version}-{tag}.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:  # with the modes of the files
            for path in sorted(path for path in root.rglob("*") if path.is_file()):
                archive.write(path, path.relative_to(root))
    return wheel


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    source, build, folder = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    wheel = make(source, build, folder)
    print(f"{wheel}: {wheel.stat().st_size / 2**20:.0f} MiB, for torch {portable.torch_of(build)}; on the other machine: "
          f"pip install {wheel.name}")


if __name__ == "__main__":
    main()
