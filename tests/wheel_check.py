#!/usr/bin/env python3
"""What ./dev wheel makes is installed into a fresh venv: the program and the Python functions work there, and say in one
sentence what a machine lacks. About 40 seconds.

usage: wheel_check.py SOURCE_DIR BUILD_DIR TORCH_DIR
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap


def run(command, code=0, **options):
    got = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if got.returncode != code:
        sys.exit(f"{command}: exit code {got.returncode}, expected {code}\n{got.stdout}{got.stderr}")
    return got


def check(condition, what):
    if not condition:
        sys.exit(f"wheel_check: {what}")


def check_sentence(got, *parts):
    """One line on stderr that has all parts."""
    text = got.stderr.strip()
    check("\n" not in text and text.startswith("[") and all(part in text for part in parts), f"expected one line with {parts}: {text}")


def check_tag(wheel, folder):
    """The C library that the name asks for has every symbol that a file asks for. This counts names in the files' tables; the
    wheel is named after another list, the versions that they need."""
    asked = int(re.search(r"manylinux_2_(\d+)_", wheel.name)[1])
    for file in [*(folder / "bin").iterdir(), *(folder / "lib").rglob("*.so*")]:
        table = run(["objdump", "-T", file]).stdout
        needed = max((int(minor) for minor in re.findall(r"\*UND\*.*GLIBC_2\.(\d+)", table)), default=0)
        check(needed <= asked, f"{wheel.name}, but {file.name} needs glibc 2.{needed}")


class Venv:
    """A fresh one with the wheel in it; without pip's network and without the torch of this machine."""

    def __init__(self, folder, wheel):
        self.folder = folder
        run([sys.executable, "-m", "venv", folder])
        clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
        self.env = clean | {"PATH": f"{folder}/bin:{clean['PATH']}"}
        self.python = folder / "bin" / "python"
        run([self.python, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel], env=self.env)
        self.site = pathlib.Path(run([self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip())

    def sees(self, torch_site):
        """Only the packages of that folder besides its own."""
        (self.site / "torch.pth").write_text(f"{torch_site}\n" if torch_site else "")

    def hetermoe(self, *words, code=0):
        return run(["hetermoe", *words], code, env=self.env, cwd=self.folder)

    def runs(self, text, code=0):
        return run([self.python, "-c", text], code, env=self.env, cwd=self.folder)


def check_program(venv, version):
    check(venv.hetermoe("--version").stdout == f"hetermoe {version}\n", "the version")
    doctor = json.loads(venv.hetermoe("doctor", "--json").stdout)
    check(doctor["configs"]["folder"] == str(venv.site / "hetermoe" / "configs"), f"configurations of {doctor['configs']['folder']}")
    written = venv.hetermoe("plan", "--model", "demo", "--cluster", "demo", "--seq", "64", "--sequences", "16", "-o", "p.json")
    check("simulate: hetermoe simulate" in written.stdout, f"the program is not called as the user calls it: {written.stdout}")
    venv.hetermoe("train", "--model", "tiny", "--cluster", "one", "--strategy", "single", "--train.steps", "2", "--train.seq_len", "32")


def check_functions(venv):
    """What a function returns is what the command prints."""
    words = ["--model", "demo", "--cluster", "demo", "--json"]
    asked = {"plan": (["--seq", "64", "--sequences", "16"], 'seq=64, sequences=16'),
             "simulate": (["--strategy", "ep", "--train.seq_len", "64"], 'strategy="ep", train={"seq_len": 64}'),
             "compare": (["--seq", "64,128", "--strategies", "ep,zebra", "--wire-reduce", "fp32", "--no-asym-ea"],
                         'seq=[64, 128], strategies=["ep", "zebra"], wire_reduce="fp32", no_asym_ea=True, idle=None')}
    for command, (line, call) in asked.items():
        printed = json.loads(venv.hetermoe(command, *words, *line).stdout)
        text = f'import hetermoe, json; print(json.dumps(hetermoe.{command}(model="demo", cluster="demo", {call})))'
        returned = json.loads(venv.runs(text).stdout)
        for times in ("search", "seconds", "took_s"):  # how long the planner took is never the same
            printed.pop(times, None), returned.pop(times, None)
        check(printed == returned, f"hetermoe.{command} returns something else than --json prints")
    error = 'import hetermoe\ntry: hetermoe.plan(model="demp", cluster="demo")\nexcept hetermoe.Error as error: print(error.code, error)'
    told = venv.runs(error).stdout
    check(told.startswith("2 [demp]") and 'Did you mean "demo"?' in told, f"the error: {told}")


def check_example(venv, page):
    """The Python lines of the page run as they stand."""
    block = max(re.findall(r"(?:^    .*\n|^\n)+", page.read_text(), re.M), key=lambda text: text.count("hetermoe."))
    told = venv.runs(textwrap.dedent(block) + "print(len(rows['rows']))").stdout
    check(re.fullmatch(r".+ \d+\.\d+\n6\n", told), f"the example of {page.name}: {told}")


def check_lacks(venv, torch, wanted):
    check_sentence(venv.hetermoe("train", "--model", "tiny", "--cluster", "one", "--strategy", "single", "--run.device",
                                 "cuda:0", code=2), "cuda:0")
    venv.sees(None)
    check_sentence(venv.hetermoe("doctor", code=2), f"found none for {venv.python}", f"pip install torch=={wanted}")
    told = venv.runs("import hetermoe\nhetermoe.plan()", code=1).stderr
    check("hetermoe.Error: [torch] found none" in told, f"the function without torch: {told}")
    other = venv.folder / "other" / "torch"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "version.py").write_text("__version__ = '1.13.1+cu117'\n")
    venv.sees(other.parent)
    check_sentence(venv.hetermoe("--version", code=2), f"got torch 1.13.1 in {other}, expected {wanted}", f"torch=={wanted}")


def main():
    source, build, torch = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    run(["cmake", "--build", build, "--target", "hetermoe_portable"])
    with tempfile.TemporaryDirectory() as place:
        run([sys.executable, source / "tools/wheel.py", source, build, place])
        wheel, = pathlib.Path(place).glob("*.whl")
        venv = Venv(pathlib.Path(place, "venv"), wheel)
        check_tag(wheel, venv.site / "hetermoe")
        version = re.match(r"hetermoe-([^-]+)-", wheel.name)[1]
        wanted = json.loads((venv.site / "hetermoe" / "bundle.json").read_text())["torch"]
        metadata = (venv.site / f"hetermoe-{version}.dist-info" / "METADATA").read_text()
        check(f"Requires-Dist: torch=={wanted}\n" in metadata, "the wheel does not ask for its torch")
        venv.sees(torch.parent)
        check_program(venv, version)
        check_functions(venv)
        check_example(venv, source / "docs" / "python.md")
        check_lacks(venv, torch, wanted)
    print(f"{wheel.name} works in a fresh venv")


if __name__ == "__main__":
    main()
