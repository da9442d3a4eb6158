#!/usr/bin/env python3
"""Adds a transfer, a compute op and a buffer with a tensor to a copy of the program: without their rows it does not
build, and the error names what is missing; with them it simulates and executes a schedule that has them. Adds an order policy, a
strategy, a transport, a metric, a job key and a model family, too, and trains with all of them. Counts the files of the
program that each of them takes, against ALLOWED.

usage: tests/planted_kinds.py SOURCE_DIR PROGRAM [--folder KEEP]

PROGRAM is hetermoe as it is: losses must stay what they are. Compiles the whole program once (./dev check-all).
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


# Files of the program that a new one of each may touch.
ALLOWED = {"op": 4, "buffer": 1, "order policy": 2, "strategy": 2, "transport": 2, "metric": 1, "job key": 2, "model family": 2}


def run(command, cwd=None, code=0):
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    if code is not None and done.returncode != code:
        sys.exit(f"{command}: exit code {done.returncode}, expected {code}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def check(good, what):
    if not good:
        sys.exit(f"planted_kinds: {what}")


class Planted:
    """Edits a copy of the program, and keeps which files each addition takes."""

    def __init__(self, source, copy):
        self.source, self.copy, self.files = source, copy, {}

    def insert(self, what, path, after, text):
        file = self.copy / "hetermoe" / path
        lines = file.read_text()
        check(lines.count(after) == 1, f"{path} has not one {after!r}")
        file.write_text(lines.replace(after, after + text))
        self.files.setdefault(what, set()).add(path)

    def add(self, what, planted, path):
        shutil.copy(self.source / "tests/planted" / planted, self.copy / "hetermoe" / path)
        self.files.setdefault(what, set()).add(path)

    def check_counts(self):
        for what, allowed in ALLOWED.items():
            count = len(self.files[what])
            check(count <= allowed, f"a new {what} takes {count} files, expected {allowed} at most: {sorted(self.files[what])}")
        return ", ".join(f"{what} {len(files)}" for what, files in self.files.items())


def plant_rows(planted):
    """What needs a row, or a row and a file."""
    planted.insert("order policy", "plan/plan.h", "  X(kTimed, timed)", " \\\n  X(kPlanted, planted)")
    planted.add("order policy", "order.cpp", "schedule/order_planted.cpp")
    planted.insert("strategy", "planner/strategies/strategies.cpp", "       DeviceUse::kApart, Cut::kNone, false, make_zebra},\n",
                   '''      {"planted", "as zebra, in the planted order", DeviceUse::kApart, Cut::kNone, false,
       [](const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
         Plan plan = make_zebra(model, cluster, request);
         plan.strategy = "planted", plan.order = OrderPolicy::kPlanted, plan.window = 1;
         return plan;
       }},
''')
    planted.add("transport", "transport.cpp", "comm/planted.cpp")
    planted.insert("transport", "comm/transports.cpp", "namespace hetermoe {\n", "std::unique_ptr<Transport> make_planted_transport(i32 num_devices);\n")
    planted.insert("transport", "comm/transports.cpp", "constexpr TransportKind kKinds[] = {\n",
                   '''    {.name = "planted",
     .between = "devices of one process",
     .attributes = {},
     .serves = [](const Processes& processes, c10::Device) { return processes.alone(); },
     .library = [] { return std::string("no library"); },
     .make =
         [](const Processes&, TransportOptions options) {
           return make_planted_transport(static_cast<i32>(options.rank_of.size()));
         }},
''')
    planted.insert("metric", "report/metrics.cpp", '      {"wall_s", "s", of(&StepRecord::wall_s)},\n', '      {"planted", "s", [](R r) { return Json(2 * r.step_s); }},\n')
    planted.insert("job key", "train/job/job.h", "  i64 staleness = 0;\n", "  i64 planted = 0;\n")
    planted.insert("job key", "train/job/job.h", "    length_fields(v);\n", '    v("planted", planted, "a number that the run tells", at_least(0));\n')
    planted.insert("job key", "train/run/train_job.cpp", "    for (const std::string& note : idle_keys_notes(job_)) tell(note);\n",
                   '    tell(fmt::format("planted key {}", job_.train.planted));\n')
    planted.insert("model family", "model/family.cpp", "const std::vector<ModelFamily>& families() {\n  static const std::vector<ModelFamily> all = {\n",
                   '''      [] {
        ModelFamily out = mixtral();
        out.model_type = "planted_moe";
        return out;
      }(),
''')


def train_planted(options, program, folder):
    """All rows at once; losses are those of the program without them."""
    config = json.loads((options.source / "configs/models/tiny.json").read_text())
    config["model_type"] = "planted_moe"
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(config))
    job = ["--cluster", "demo", "--train.steps", 3]
    told = run([program, "train", "--model", folder / "model", *job, "--strategy", "planted", "--run.transport", "planted",
                "--train.planted", 7, "--output", folder / "rows"])
    check("planted key 7" in told, f"the run does not tell its planted key:\n{told}")
    check(re.search(r"planted transport: [1-9]\d* exchanges", told), f"the planted transport moved nothing:\n{told}")
    run([options.program.resolve(), "train", "--model", "tiny", *job, "--output", folder / "plain"])
    lines = {name: [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()] for name in ("rows", "plain")}
    for got, expected in zip(lines["rows"], lines["plain"], strict=True):
        check(abs(got["loss"] - expected["loss"]) < 1e-5, f"loss {got['loss']}, expected {expected['loss']}")
        check(got["planted"] == 2 * got["step_s"], f"metric {got['planted']}, expected twice {got['step_s']}")
        check(got["step_s"] > 1.05 * expected["step_s"], f"step {got['step_s']} s in the planted order, {expected['step_s']} s by zebra")
    check(json.loads((folder / "rows/plan.json").read_text())["order"] == "planted", "plan.json has another order")


def build(copy, target="hetermoe"):
    return run(["cmake", "--build", copy / "build", "--target", target, "--", "-k", "0"], code=None)


def losses(program, job, folder):
    run([program, "train", job, "--train.steps", 3, "--output", folder])
    return [json.loads(line).get("loss") for line in (folder / "metrics.jsonl").read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, help="works here and leaves it")
    options = parser.parse_args()
    source = options.source.resolve()
    folder = options.folder or pathlib.Path(tempfile.mkdtemp())
    copy = folder / "copy"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git", "build", "build-*", "out", ".venv"))
    if (source / ".venv").exists():
        (copy / ".venv").symlink_to(source / ".venv")

    planted = Planted(source, copy)
    plant_rows(planted)
    planted.insert("op", "placement/op.h", "  X(kSettle, settle)", " \\\n  X(kPlantedSum, planted_sum) \\\n  X(kPlantedPass, planted_pass)")
    run([copy / "dev", "build", "release", "hm_base"], cwd=copy)  # configures
    planted.add("op", "ops.cpp", "ops/planted.cpp")
    told = build(copy, "hm_ops")
    check(re.search("kPlanted.? is not a member of .*Buffer", told), f"a buffer without a row is not named:\n{told[-3000:]}")

    (copy / "hetermoe/ops/planted.cpp").unlink()
    planted.insert("buffer", "ops/buffer_list.h", re.search(r"#define HM_BUFFERS_OF_STEP\(X\) *\\\n", (copy / "hetermoe/ops/buffer_list.h").read_text())[0],
                   '  X(kPlanted, planted, kTensor, kStep, kInFlight, nullptr, "a one of each device") \\\n')
    told = build(copy)
    for name in ("op_rows::planted_sum", "op_rows::planted_pass", "exec_ops::planted_sum", "exec_ops::planted_pass"):
        check(re.search(rf"undefined reference to `hetermoe::{name}", told), f"the linker does not name {name}:\n{told[-3000:]}")

    planted.add("op", "ops.cpp", "ops/planted.cpp")
    planted.add("op", "exec.cpp", "exec/ops/planted.cpp")
    told = build(copy)
    program = copy / "build/hetermoe"
    check(program.exists(), f"it does not build with its rows:\n{told[-3000:]}")
    job = source / "configs/jobs/demo.yaml"
    run([program, "simulate", job, "--output", folder / "simulated"])
    text = (folder / "simulated/schedule.txt").read_text()
    check("planted_sum" in text and "planted_pass" in text, "the simulated schedule lacks them")
    before, after = losses(options.program.resolve(), job, folder / "before"), losses(program, job, folder / "after")
    check(before == after and len(after) >= 3, f"losses {after}, expected {before}")
    check("planted_sum" in (folder / "after/timeline.json").read_text(), "the executed steps lack them")
    train_planted(options, program, folder)
    print("planted kinds: refused without rows, simulated and executed with them")
    print(f"files of the program that one takes: {planted.check_counts()}")
    if not options.folder:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
