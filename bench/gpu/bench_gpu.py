#!/usr/bin/env python3
"""One command for one GPU, below eight minutes: the GPU tests, then hetermoe beside transformers on the same models in turn,
predictions from a profile measured just now, and where a step's time goes. Prints tables and leaves bench_gpu.json.

  ./dev bench-gpu                                      # from the sources
  FOLDER/bench-gpu --python /opt/torch/bin/python      # from what ./dev bundle FOLDER made, on a machine without network
  ./dev bench-gpu --device cpu --models tiny           # no GPU: shows that the command works, its figures mean nothing

A part that fails, is missing (no transformers) or does not fit into the time is named, and the rest goes on; the exit code
is 1 then, except for what is missing or had no time. Needs Python 3.8 alone; torch and transformers are those of --python.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "python" / "hetermoe")]  # of a bundle, and of the sources
sys.dont_write_bytecode = True
import program  # noqa: E402

# One microbatch of a step: sequences, tokens of each.
SHAPES = {"olmoe4": (8, 2048), "qwen4": (4, 4096), "mixtral2": (4, 4096)}
SMALL_SHAPE = (2, 64)  # of a model without a row above
VARIANTS = ["pure_compiled", "autocast", "autocast_compiled", "pure"]  # the most telling first
MISSING = 77  # peer.py's exit code where torch or transformers are not there
LIMITS = {"tests": 100, "ranks": 120, "ours": 75, "peer": 75, "profile": 60, "simulate": 20, "doctor": 60}  # seconds of a part


class Fault(Exception):
    """What went wrong with a part, in one line."""


class Missing(Fault):
    """A part that this machine cannot run, or that there was no time for."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:N or cpu")
    parser.add_argument("--models", default="olmoe4,qwen4,mixtral2", help="names of configs/models, separated by commas")
    parser.add_argument("--shape", default="", help="SEQUENCESxTOKENS of every model, as 2x64, instead of its own")
    parser.add_argument("--variants", default="", help="of the peer: " + ", ".join(VARIANTS) + "; none = no peer")
    parser.add_argument("--dtype", default="", help="of hetermoe: bf16, fp16 or fp32 [default: that of a run on the device]")
    parser.add_argument("--steps", type=int, default=12, help="of each run; the later half counts")
    parser.add_argument("--rounds", type=int, default=2, help="how often hetermoe runs, with the peer in between")
    parser.add_argument("--budget", type=float, default=470, help="seconds; parts for which no time is left are named")
    parser.add_argument("--python", default="", help="interpreter with torch and transformers")
    parser.add_argument("--torch-dir", default="", help="the torch package, where --python does not find it")
    parser.add_argument("--python-path", default="", help="further folders of Python packages for the peer, as PYTHONPATH")
    parser.add_argument("--program", default="", help="hetermoe, if not that of this folder")
    parser.add_argument("--configs", default="", help="folder of the models' config files, if not that of this folder")
    parser.add_argument("--out", default="out/bench-gpu", help="folder of results")
    parser.add_argument("--skip", default="", help="parts to leave out, separated by commas: tests, profile, peer, ranks")
    return parser.parse_args()


def tail(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


def package_folder(python, package):
    """Where an interpreter has a package, without importing it; empty = it has none."""
    code = f"import importlib.util as u; s = u.find_spec('{package}'); print(s.submodule_search_locations[0] if s else '')"
    try:
        run = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except OSError as error:
        raise Fault(f"--python {python}: {error.strerror}") from error
    return run.stdout.strip() if run.returncode == 0 else ""


class Machine:
    """Where things are, and how to run them within the time."""

    def __init__(self, args):
        self.begin = time.monotonic()
        self.args = args
        self.bundled = (ROOT / "bundle.json").exists()
        folder = ROOT / "bin" if self.bundled else ROOT / "build"
        self.program = pathlib.Path(args.program or folder / "hetermoe")
        self.tests = self.program.parent / "test_cuda"
        self.configs = pathlib.Path(args.configs) if args.configs else ROOT / "configs" / "models"
        self.python = args.python or self.own_python()
        self.torch = pathlib.Path(args.torch_dir or package_folder(self.python, "torch") or "/nowhere")
        self.out = pathlib.Path(args.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.environment = self.environment_for_torch()
        self.check_torch()

    def own_python(self):
        own = ROOT / ".venv" / "bin" / "python"
        return str(own) if own.exists() else sys.executable

    def environment_for_torch(self):
        """A build of another machine finds torch's libraries by this alone."""
        environment = program.environment(self.torch) if self.bundled else dict(os.environ)
        environment.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        path = [self.args.python_path] if self.args.python_path else []
        if self.args.torch_dir:
            path.append(str(self.torch.parent))
        if path:
            environment["PYTHONPATH"] = ":".join(path + [environment.get("PYTHONPATH", "")]).rstrip(":")
        return environment

    def check_torch(self):
        if not self.program.exists():
            raise Fault(f"{self.program} is not there: ./dev build, or --program")
        if not self.bundled:
            return
        try:
            program.checked_torch(self.torch, self.python)
        except program.TorchError as error:
            raise Fault(f"{error}, or name an interpreter that has it (--python) or its folder (--torch-dir)") from error

    def left(self):
        return self.args.budget - (time.monotonic() - self.begin)

    def run(self, part, command, log):
        """stdout of a command, which has the part's limit and what is left of the time."""
        limit = min(LIMITS[part], self.left())
        if limit < 0.25 * LIMITS[part]:
            raise Missing(f"no time left ({max(0, self.left()):.0f} s)")
        path = self.out / "logs" / f"{log}.log"
        path.parent.mkdir(exist_ok=True)
        with open(path, "w") as errors:
            process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=errors, text=True,
                                       env=self.environment, start_new_session=True)
            try:
                output, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise Fault(f"not done after {limit:.0f} s; see {path}") from None
        if process.returncode != 0:
            text = path.read_text() + output
            if process.returncode == MISSING:
                raise Missing(tail(text))
            raise Fault(f"exit code {process.returncode}: {tail(text)}; see {path}")
        return output


# ---- parts ----


def examine(machine):
    return json.loads(machine.run("doctor", [machine.program, "doctor", "--json"], "doctor"))


def run_ranks(machine):
    """Several ranks on this GPU, over NCCL: two of the cases of tests/cuda/ranks.py."""
    if machine.args.device == "cpu":
        raise Missing("they need a GPU")
    command = [sys.executable, ROOT / "tests" / "cuda" / "ranks.py", machine.program, "--device", machine.args.device, "--only",
               "zebra,kill"]
    return {"cases": [line for line in machine.run("ranks", command, "ranks").splitlines() if ": passed" in line]}


def run_tests(machine):
    """Numbers of test_cuda."""
    if machine.args.device == "cpu":
        raise Missing("they need a GPU")
    if not machine.tests.exists():
        raise Missing(f"{machine.tests} is not there")
    output = machine.run("tests", [machine.tests], "tests")
    passed = re.search(r"\[  PASSED  \] (\d+) tests?", output)
    skipped = re.search(r"\[  SKIPPED \] (\d+) tests?", output)
    count = {"passed": int(passed[1]) if passed else 0, "skipped": int(skipped[1]) if skipped else 0}
    if count["passed"] == 0:
        raise Missing(f"{count['skipped']} skipped: the driver shows no GPU")
    return count


def type_like(name, memory):
    """A type of the catalogue for a GPU by its name, with which profile and memory are combined."""
    found = [kind for kind in ("H100", "H200", "B200", "L40S", "L4", "A40", "A10", "V100", "T4", "P100",
                               "RTX2080Ti", "RTX3090", "RTX4090", "RTX5090")
             if re.search(kind + r"(?![0-9A-Za-z])", name.replace("GeForce ", "").replace("RTX ", "RTX").replace(" Ti", "Ti"))]
    if "A100" in name:
        found = ["A100-80" if memory > 50e9 else "A100-40"]
    return found[0] if found else "H100"


class Model:
    """One model of the benchmark, and the files that its parts share."""

    def __init__(self, machine, name, gpu):
        self.machine, self.name, self.gpu = machine, name, gpu
        args = machine.args
        text = args.shape or "x".join(str(n) for n in SHAPES.get(name, SMALL_SHAPE))
        self.sequences, self.seq_len = (int(n) for n in text.split("x"))
        self.config = machine.configs / f"{name}.json"
        if not self.config.exists():
            raise Fault(f"{self.config} is not there")
        self.folder = machine.out / name
        self.folder.mkdir(exist_ok=True)
        self.dtype = args.dtype or gpu["dtype"]
        self.profile = None

    def cluster(self):
        """A cluster file of one such device, with the profile where there is one."""
        path = self.folder / ("cluster-profiled.json" if self.profile else "cluster.json")
        kind = {"name": "Measured", "like": self.gpu["like"]}
        if self.gpu["memory_bytes"] > 0:
            kind["memory_gib"] = self.gpu["memory_bytes"] / 2**30
        if self.profile:
            kind["profile"] = str(self.profile)
        path.write_text(json.dumps({"name": "bench", "device_types": [kind], "nodes": [{"name": "here", "devices": ["Measured"]}]}))
        return path

    def words(self):
        """The job, in words that train and simulate share."""
        return ["--model", self.config, "--cluster", self.cluster(), "--strategy", "single",
                "--train.sequences", self.sequences, "--train.seq_len", self.seq_len, "--train.microbatches", 1,
                "--train.aux_group", 0, "--plan.recompute", "off", "--plan.attention_dtype", self.dtype,
                "--plan.expert_dtype", self.dtype, "--plan.wire_dtype", self.dtype,
                # What the profile was measured in, where that is fp32, too.
                "--clock.emulated_dtype", self.dtype, *(["--clock.threads", 1] if self.machine.args.device == "cpu" else [])]

    def measure_profile(self):
        config = json.loads(self.config.read_text())
        experts = next(config[k] for k in ("num_experts", "num_local_experts", "n_routed_experts") if k in config)
        copies = self.sequences * self.seq_len * config["num_experts_per_tok"]
        rows = sorted({max(1, copies // experts // 2), max(1, copies // experts), 2 * max(1, copies // experts)})
        path = self.folder / "profile.json"
        self.machine.run("profile", [
            self.machine.program, "profile", "--model", self.config, "--device", self.machine.args.device, "--dtype", self.dtype,
            "--seq", self.seq_len, "--sequences", self.sequences, "--experts", experts, "--rows", ",".join(str(r) for r in rows),
            "--budget", 0.05, "--json", "-o", path], f"{self.name}-profile")
        self.profile = path
        return {"file": str(path), "entries": len(json.loads(path.read_text())["entries"])}

    def predict(self):
        if not self.profile:
            raise Missing("there is no profile")
        output = self.machine.run("simulate", [
            self.machine.program, "simulate", *self.words(), "--json", "--output", self.folder / "predicted"], f"{self.name}-simulate")
        out = json.loads(output)
        return {"step_s": out["step_s"], "ops_s": seconds_of_ops(self.folder / "predicted" / "timeline.json")}

    def ours(self, number):
        folder = self.folder / f"ours-{number}"
        args = self.machine.args
        self.machine.run("ours", [
            self.machine.program, "train", *self.words(), "--run.device", args.device, "--clock.kind", "real", "--train.steps", args.steps,
            "--train.validation_sequences", 0, "--train.learning_rate", 3e-4, "--train.warmup_steps", 0, "--output", folder,
            "--no-checkpoint.resume", "--json"], f"{self.name}-ours-{number}")
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        steps = [r["step_s"] for r in records]
        return {"step_s": median(steps[len(steps) // 2:]), "steps_s": steps,
                "peak_bytes": records[-1].get("gpu_peak_bytes", records[-1]["peak_memory_bytes"]),
                "first_loss": records[0]["loss"], "last_loss": records[-1]["loss"],
                "ops_s": seconds_of_ops(folder / "timeline.json")}

    def peer(self, variant):
        machine = self.machine
        command = [machine.python, HERE / "peer.py", self.config, "--variant", variant.split("_")[0], "--sequences",
                   self.sequences, "--seq-len", self.seq_len, "--steps", machine.args.steps, "--device", machine.args.device]
        if variant.endswith("_compiled"):
            command.append("--compile")
        return json.loads(machine.run("peer", command, f"{self.name}-peer-{variant}").splitlines()[-1])


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def seconds_of_ops(path):
    """Seconds of a step by kind and direction of op, over layers and lanes."""
    timeline = json.loads(path.read_text())
    kind, phase = (timeline["op_columns"].index(key) for key in ("kind", "phase"))
    op, begin, end = (timeline["span_columns"].index(key) for key in ("op", "start_s", "end_s"))
    out = {}
    for span in timeline["spans"]:
        row = timeline["ops"][span[op]]
        name = row[kind] if row[kind] == "head" or not row[phase] else f"{row[kind]}.{row[phase]}"
        out[name] = out.get(name, 0) + span[end] - span[begin]
    return out


# ---- the run ----


class Run:
    def __init__(self, machine):
        self.machine, self.args = machine, machine.args
        self.faults, self.missing = [], []
        self.result = {"format": 1, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                       "command": sys.argv[1:], "device": self.args.device, "models": {}}
        self.skip = set(filter(None, self.args.skip.split(",")))

    def part(self, name, function, *arguments):
        """What the part gives; None when it failed, which is named."""
        begin = time.monotonic()
        try:
            out = function(*arguments)
        except Missing as why:
            self.missing.append(f"{name}: {why}")
            out = None
        except Fault as why:
            self.faults.append(f"{name}: {why}")
            out = None
        except (KeyError, ValueError, OSError) as why:
            self.faults.append(f"{name}: its output was not understood ({why!r})")
            out = None
        print(f"[bench-gpu] {name}: {'done' if out is not None else 'nothing'} after {time.monotonic() - begin:.0f} s, "
              f"{max(0, self.machine.left()):.0f} s left", file=sys.stderr, flush=True)
        return out

    def gpu(self, found):
        """The device as a type of a cluster file."""
        if self.args.device == "cpu":
            return {"name": found["cpu"], "like": "CPU", "memory_bytes": 0, "dtype": "fp32", "speed": found["cpu_speed"]}
        devices = {gpu["device"]: gpu for gpu in found["gpu"].get("devices", [])}
        name = self.args.device if ":" in self.args.device else "cuda:0"
        if name not in devices:
            raise Fault(f"{name}: {found['gpu']['description']}")
        gpu = devices[name]
        if not gpu["usable"]:
            raise Fault(gpu["why"])
        return {"name": gpu["name"], "like": type_like(gpu["name"], gpu["memory_bytes"]), "memory_bytes": gpu["memory_bytes"],
                "dtype": "bf16" if float(gpu["compute_capability"]) >= 8 else "fp16", "speed": gpu.get("speed", {})}

    def variants(self):
        if "peer" in self.skip or self.args.variants == "none":
            return []
        if self.args.variants:
            return self.args.variants.split(",")
        # Compiling for a CPU takes minutes and says nothing here.
        return [v for v in VARIANTS if self.args.device != "cpu" or not v.endswith("_compiled")]

    def models(self):
        out = []
        for name in self.args.models.split(","):
            model = self.part(name, Model, self.machine, name, self.result["gpu"])
            if model:
                out.append(model)
                self.result["models"][name] = {"sequences": model.sequences, "seq_len": model.seq_len, "dtype": model.dtype,
                                               "ours": [], "peer": {}, "predicted": None}
        return out

    def run_models(self):
        """The most telling parts of all models first: what the time does not suffice for is the rest."""
        models, variants = self.models(), self.variants()
        if "profile" not in self.skip:
            for model in models:
                if self.part(f"{model.name} profile", model.measure_profile):
                    self.result["models"][model.name]["predicted"] = self.part(f"{model.name} prediction", model.predict)
        for turn in range(max(self.args.rounds, len(variants))):
            for model in models:
                entry = self.result["models"][model.name]
                if turn < self.args.rounds:
                    got = self.part(f"{model.name} hetermoe, round {turn + 1}", model.ours, turn + 1)
                    entry["ours"] += [got] if got else []
                if turn < len(variants):
                    entry["peer"][variants[turn]] = self.part(f"{model.name} peer {variants[turn]}", model.peer, variants[turn])

    def run(self):
        found = self.part("doctor", examine, self.machine)
        if found is None:
            return
        self.result["doctor"] = found
        self.result["gpu"] = self.part("device", self.gpu, found)
        if self.result["gpu"] is None:
            return
        if "tests" not in self.skip:
            self.result["tests"] = self.part("GPU tests", run_tests, self.machine)
        self.run_models()
        if "ranks" not in self.skip:
            self.result["ranks"] = self.part("ranks on one GPU", run_ranks, self.machine)
        for name, entry in self.result["models"].items():
            add_figures(name, entry, self.result["gpu"])


def add_figures(name, entry, gpu):
    """Speeds, ratios and errors out of what was measured."""
    tokens = entry["sequences"] * entry["seq_len"]
    peers = {variant: got for variant, got in entry["peer"].items() if got}
    for got in [*entry["ours"], *peers.values()]:
        got["tokens_per_s"] = tokens / got["step_s"]
    if entry["ours"]:
        best = entry["best"] = min(entry["ours"], key=lambda got: got["step_s"])
        entry["ratios"] = {variant: got["step_s"] / best["step_s"] for variant, got in peers.items()}
        if entry["predicted"]:
            entry["prediction_error"] = entry["predicted"]["step_s"] / best["step_s"] - 1
    table = json.loads((HERE / "attainable.json").read_text())
    known = table["models"].get(name)
    same = known and (known["sequences"], known["seq_len"]) == (entry["sequences"], entry["seq_len"])
    if same and table["gpu"] == gpu["name"]:
        entry["attainable"] = known


# ---- tables ----


def markdown(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def count(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def speed_cell(got):
    return f"{count(got['tokens_per_s'])} ({got['step_s']:.4g} s)" if got else "-"


def gigabytes(got):
    return f"{got['peak_bytes'] / 1e9:.3g} GB" if got else "-"


def speed_table(result):
    """tokens/s (step) of ours and of each variant; how many times as fast ours is; memory; prediction."""
    variants = [v for v in VARIANTS if any(v in entry["peer"] for entry in result["models"].values())]
    header = ["tokens/s (step)", "hetermoe", *[f"peer {v.replace('_', ' ')}" for v in variants], "predicted", "error"]
    rows, memory = [], []
    for name, entry in result["models"].items():
        best, predicted = entry.get("best"), entry["predicted"]
        cells = []
        for variant in variants:
            ratio = entry.get("ratios", {}).get(variant)
            cells.append(speed_cell(entry["peer"].get(variant)) + (f", {ratio:.2f} x" if ratio else ""))
        rows.append([f"{name}, {entry['sequences']} x {entry['seq_len']}, {entry['dtype']}", speed_cell(best), *cells,
                     f"{predicted['step_s']:.4g} s" if predicted else "-",
                     f"{100 * entry['prediction_error']:+.1f} %" if "prediction_error" in entry else "-"])
        memory.append([name, gigabytes(best), *[gigabytes(entry["peer"].get(variant)) for variant in variants]])
    return (markdown(header, rows) + "\nx: how many times as fast hetermoe is. Medians of the later half of the steps; the faster round.\n\n"
            + markdown(["peak memory", "hetermoe", *[f"peer {v.replace('_', ' ')}" for v in variants]], memory))


def op_table(name, entry):
    """Where a step goes; ops that take less than a thousandth of it are left out."""
    ours, predicted = entry["best"]["ops_s"], (entry["predicted"] or {}).get("ops_s", {})
    attainable = entry.get("attainable", {}).get("ops", {})
    step = entry["best"]["step_s"]
    rows = []
    for op, seconds in sorted(ours.items(), key=lambda item: -item[1]):
        if seconds < 1e-3 * step and op not in attainable:
            continue
        best = attainable.get(op)
        rows.append([op, f"{1e3 * seconds:.4g}", f"{100 * seconds / step:.1f} %",
                     f"{1e3 * predicted[op]:.4g}" if op in predicted else "-",
                     f"{1e3 * best:.4g}" if best else "-", f"{seconds / best:.2f} x" if best else "-"])
    return f"\n{name}, ms of the last step by op:\n\n" + markdown(
        ["op", "took", "of the step", "predicted", "attainable", "over it"], rows)


def report(result, faults, missing):
    lines = []
    gpu = result.get("gpu")
    if gpu:
        speed = gpu.get("speed", {})
        text = ", ".join(f"{key.split('_')[0]} {speed[key] / 1e12:.4g} TFLOP/s" for key in ("fp32_flops", "bf16_flops", "fp16_flops")
                         if key in speed)
        copies = f"; copies {speed['copy_bytes_per_s'] / 1e9:.4g} GB/s" if "copy_bytes_per_s" in speed else ""
        lines.append(f"{gpu['name']}, torch {result['doctor']['torch']}, {result['date']}: products {text}{copies}\n")
    if result.get("tests"):
        lines.append(f"GPU tests: {result['tests']['passed']} passed, {result['tests']['skipped']} skipped\n")
    if result.get("ranks"):
        lines += [f"several ranks on this GPU, {line}" for line in result["ranks"]["cases"]]
    if result["models"]:
        lines.append(speed_table(result))
    lines += [op_table(name, entry) for name, entry in result["models"].items() if entry.get("best")]
    if missing:
        lines.append("\nleft out:\n" + "\n".join(f"* {line}" for line in missing))
    if faults:
        lines.append("\nFAILED:\n" + "\n".join(f"* {line}" for line in faults))
    return "\n".join(lines)


def main():
    args = arguments()
    try:
        machine = Machine(args)
    except Fault as why:
        print(f"[bench-gpu] {why}", file=sys.stderr)
        return 2
    run = Run(machine)
    run.run()
    run.result.update(failed=run.faults, left_out=run.missing, seconds=time.monotonic() - machine.begin)
    text = report(run.result, run.faults, run.missing)
    print(text)
    (machine.out / "bench_gpu.md").write_text(text + "\n")
    path = machine.out / "bench_gpu.json"
    path.write_text(json.dumps(run.result, indent=1) + "\n")
    print(f"\nwritten to {path} after {run.result['seconds']:.0f} s")
    return 1 if run.faults else 0


if __name__ == "__main__":
    sys.exit(main())
