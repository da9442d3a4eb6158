"""A root folder that has a bare Linux, Python and torch alone. What runs there needs nothing else of this machine."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

COMMANDS = ["bash", "env", "readlink", "dirname"]
# Of the libraries that a program brings along none is among those that the root has.
LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
MOUNT = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]


def can_be_made():
    """Containers often forbid mounts."""
    return subprocess.run([*MOUNT, "true"], capture_output=True).returncode == 0


def libraries_of(file, env=None):
    out = subprocess.run(["ldd", str(file)], capture_output=True, text=True, env=env).stdout
    return LIBRARY.findall(out)


def copy(path, root):
    """To the same place in the root, with links followed."""
    target = root / str(path).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(path, target)


class EmptyRoot:
    """root: an empty folder, which is filled. torch: the folder of the package, whose site is bound into the root; so is
    Python's library. system: a pattern of the libraries that every machine with torch has (bundle.SYSTEM)."""

    def __init__(self, root, torch, system):
        self.root = root
        self.python = os.path.realpath(sys.executable)
        self.bound = [sysconfig.get_path("stdlib"), str(torch.parent)]
        for name in COMMANDS:
            self.add_program(shutil.which(name))
        self.add_program(self.python)
        for library in libraries_of(torch / "lib" / "libtorch_cpu.so"):
            if system.fullmatch(os.path.basename(library)):
                copy(library, root)
        for folder in [*self.bound, "/proc", "/tmp", "/dev"]:
            (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def add_program(self, path):
        copy(path, self.root)
        for library in libraries_of(path):
            copy(library, self.root)

    def run(self, command, **environment):
        """The finished process, with what it printed. PATH is that of the copied commands and Python."""
        path = ":".join(dict.fromkeys([*(os.path.dirname(shutil.which(name)) for name in COMMANDS), os.path.dirname(self.python)]))
        words = [f"{key}={value}" for key, value in {"PATH": path, "HOME": "/tmp", **environment}.items()]
        script = ['set -e', 'root=$1; shift', f'mount --rbind /proc "$root/proc"', f'mount --rbind /dev "$root/dev"']
        for folder in self.bound:
            script.append(f'mount --bind "{folder}" "$root{folder}"')
        script.append('cd "$root"; exec chroot "$root" "$@"')
        line = [*MOUNT, "bash", "-c", "\n".join(script), "bash", str(self.root), shutil.which("env"), "-i", *words, *map(str, command)]
        return subprocess.run(line, capture_output=True, text=True)
