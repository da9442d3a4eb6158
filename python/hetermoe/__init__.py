"""Plans, simulates and compares the training of Mixture-of-Experts models on clusters that mix newer and older GPUs.

plan, simulate and compare are the commands of that name. They return what the command prints with --json:

    import hetermoe
    plans = hetermoe.plan(model="d1", cluster="o1", seq=8192, sequences=96)
    step = hetermoe.simulate(model="d1", cluster="o1", strategy="zebra", train={"seq_len": 8192, "sequences": 96})

Words without a name are arguments of the command: hetermoe.simulate("job.yaml"). Names are options, with _ for -. A value is
a number, text, a path, True (the option alone), None (as if left out), a list, or a dict of the keys below: train={"steps": 9}
is --train.steps 9. `hetermoe plan --help` and `hetermoe options` list them all.

What the command prints to stderr besides goes to sys.stderr. Calls may run in several threads at once: each is a process.
"""
import json
import subprocess
import sys

from . import program

__all__ = ["Error", "compare", "plan", "simulate"]


class Error(Exception):
    """The text of the program's error; code: its exit code (2 = wrong use or wrong input)."""

    def __init__(self, text, code):
        super().__init__(text)
        self.code = code


def _words_of(name, value):
    """The command line's words for one option."""
    if value is None:
        return []
    if value is True:
        return [f"--{name}"]
    if isinstance(value, dict):
        return [word for key, inner in value.items() for word in _words_of(f"{name}.{key}", inner)]
    if value is False:
        text = "false"
    elif isinstance(value, (list, tuple)):
        text = ",".join(str(item) for item in value)
    else:
        text = str(value)
    return [f"--{name}={text}"]


def _run(command, words, options):
    try:
        env = program.environment(program.checked_torch(program.torch_folder()))
    except program.TorchError as error:
        raise Error(str(error), 2) from None
    line = [str(program.PROGRAM), command, *(str(word) for word in words), "--json"]
    for name, value in options.items():
        line += _words_of(name.replace("_", "-"), value)
    run = subprocess.run(line, capture_output=True, text=True, env=env, check=False)
    try:  # a plan that does not fit is an answer, too
        answer = json.loads(run.stdout)
    except json.JSONDecodeError:
        raise Error(run.stderr.strip() or f"[hetermoe] {command} ended with code {run.returncode}", run.returncode) from None
    sys.stderr.write(run.stderr)
    return answer


def plan(*words, **options):
    """The best plans for a model on a cluster: `hetermoe plan`. Raises Error."""
    return _run("plan", words, options)


def simulate(*words, **options):
    """One step of a job, simulated: `hetermoe simulate`. Raises Error."""
    return _run("simulate", words, options)


def compare(*words, **options):
    """Strategies or balancers beside each other: `hetermoe compare`. Raises Error."""
    return _run("compare", words, options)
