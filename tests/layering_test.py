#!/usr/bin/env python3
"""Folders of hetermoe/ depend in one direction only: a file includes headers of its own or an earlier folder.

usage: layering_test.py SOURCE_DIR [BUILD_DIR]

The order is read from the hm_folders() calls of CMakeLists.txt. Also checked: folders without torch include no header
of torch, MPI or CUDA; every quoted include exists; headers begin with #pragma once. Sub-folders of ORDERED have an
order of their own.
"""
import re
import sys
import tempfile
from pathlib import Path

HEAVY = re.compile(r"(torch|ATen|c10|caffe2|cuda|cub|thrust|mpi|nccl|cublas|cudnn|nvtx3?|nvml)(/|\w*\.h)")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Sub-folders in the order in which they depend on each other. "" = files beside them.
ORDERED = {"planner": ["", "estimate", "strategies", "words", "search"], "train": ["job", "session", "checkpoint", "run", "growth"]}
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}


def folder_order(source):
    """All folders in order of dependency, and those that may use torch."""
    cmake = (source / "CMakeLists.txt").read_text()
    order = [name for call in re.findall(r"hm_folders\(([^)]*)\)", cmake) for name in call.split()]
    found = re.search(r"set\(HM_TORCH_FOLDERS ([^)]*)\)", (source / "cmake/folders.cmake").read_text())
    if not order or not found:
        sys.exit("layering_test: CMakeLists.txt and cmake/folders.cmake name no folders")
    return order, set(found.group(1).split())


def check_order_within(order, file, included):
    """What is wrong with an include between sub-folders of one folder, or None. Both are split paths."""
    of_included, of_file = sub_folder(included), sub_folder(file)
    if order.index(of_included) > order.index(of_file):
        return f"includes {'/'.join(included)}, but {of_included} comes after {of_file or 'all files beside it'}"
    return None


def sub_folder(parts):
    return parts[2] if len(parts) > 3 else ""


def check_include(file, bracket, included, rank, torch_folders, source):
    """What is wrong with one include of a file in folder file.parts[1], or None."""
    folder = file.parts[1]
    target = included.split("/")
    if target[0] == "hetermoe":
        if not (source / included).is_file():
            return f"includes {included}, which does not exist"
        if target[1] not in rank or rank[target[1]] > rank[folder]:
            return f"includes {included}, but {target[1]} comes after {folder}"
        if target[1] == folder and folder in ORDERED:
            return check_order_within(ORDERED[folder], file.parts, target)
    elif bracket == '"':
        return f'includes "{included}": write the path from the root, "hetermoe/..."'
    elif folder not in torch_folders and HEAVY.match(included):
        return f"includes <{included}>, but {folder} is free of torch, MPI and CUDA"
    return None


def violations(source):
    order, torch_folders = folder_order(source)
    rank = {name: i for i, name in enumerate(order)}
    out, num_files = [], 0
    for path in sorted((source / "hetermoe").rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        num_files += 1
        file = path.relative_to(source)
        if len(file.parts) < 3 or file.parts[1] not in rank:
            out.append(f"{file}: is in no folder that CMakeLists.txt names")
            continue
        if sub_folder(file.parts) not in ORDERED.get(file.parts[1], [sub_folder(file.parts)]):
            out.append(f"{file}: is in no sub-folder of {file.parts[1]} that layering_test.py names")
            continue
        lines = path.read_text().splitlines()
        if path.suffix in {".h", ".cuh"} and "#pragma once" not in lines:
            out.append(f"{file}: has no #pragma once")
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            fault = match and check_include(file, match[1], match[2], rank, torch_folders, source)
            if fault:
                out.append(f"{file}:{number}: {fault}")
    return out, num_files


def self_check():
    """The check must be able to fail: one planted file per rule."""
    planted = {
        "hetermoe/low/later.cpp": '#include "hetermoe/high/a.h"',
        "hetermoe/low/torch.cpp": "#include <ATen/ATen.h>",
        "hetermoe/low/mpi.cpp": "#include <mpi.h>",
        "hetermoe/low/cuda.cpp": "#include <cuda_runtime.h>",
        "hetermoe/low/relative.cpp": '#include "b.h"',
        "hetermoe/low/missing.cpp": '#include "hetermoe/low/missing.h"',
        "hetermoe/low/once.h": "int x;",
        "hetermoe/other/a.cpp": "",
        "hetermoe/train/loose.cpp": "",
        "hetermoe/train/job/later.cpp": '#include "hetermoe/train/run/a.h"',
    }
    sound = {
        "CMakeLists.txt": "hm_folders(low)\n hm_folders(high train)",
        "cmake/folders.cmake": "set(HM_TORCH_FOLDERS high)",
        "hetermoe/high/a.h": '#pragma once\n#include <ATen/ATen.h>\n#include "hetermoe/low/b.h"',
        "hetermoe/low/b.h": "#pragma once\n#include <vector>\n#include <cuchar>",
        "hetermoe/train/run/a.h": '#pragma once\n#include "hetermoe/train/job/b.h"',
        "hetermoe/train/job/b.h": "#pragma once",
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**planted, **sound}.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        caught = sorted(line.split(":")[0] for line in violations(Path(folder))[0])
    if caught != sorted(planted):
        sys.exit(f"layering_test: its own check is broken: got {caught}, expected {sorted(planted)}")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    self_check()
    found, num_files = violations(Path(sys.argv[1]).resolve())
    for line in found:
        print(line)
    print(f"layering_test: {num_files} files, {len(found)} violations")
    return 1 if found or num_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
