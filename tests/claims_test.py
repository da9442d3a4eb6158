#!/usr/bin/env python3
"""The table of claims in docs/testing.md is what the comments above the tests say (tools/claims.py).

usage: claims_test.py SOURCE_DIR [BUILD_DIR]
"""
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path


def load(source):
    spec = importlib.util.spec_from_file_location("claims", source / "tools/claims.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fault_of(claims, text, where="tests/a_test.cpp"):
    try:
        claims.claims_of(text, where)
    except claims.Fault as fault:
        return str(fault)
    return ""


def self_check(claims):
    of = lambda text: claims.claims_of(text, "tests/a_test.cpp")
    assert of("// Claim: one holds.\nTEST(A, One) {\n") == [("one holds", ["A.One"])]
    assert of("// Claim (A.*,\n// B.Two): goes\n// on: so.\nTEST_P(A,\n       One) {\n") == [("goes on: so", ["A.*", "B.Two"])]
    assert of("// Claim: x\n// Claim: y\n/// Doc.\nTEST_F(A, One) {\n") == [("x", ["A.One"]), ("y", ["A.One"])]
    assert fault_of(claims, "// Claim: x\nint f();\n") == "tests/a_test.cpp:1: no test is below the claim"
    assert "A.One is below a claim that names B.*" in fault_of(claims, "// Claim (B.*): x\nTEST(A, One) {\n")
    assert "names its tests" in fault_of(claims, "# Claim: x\n", "tests/a.py")
    assert claims.claims_of("# Claim (pairs): x\nimport re\n", "tests/a.py") == [("x", ["pairs"])]


def check_program(source):
    """A page that lacks a claim fails with its row, and --write mends it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "docs").mkdir()
        (Path(folder) / "tests").mkdir()
        page = Path(folder) / "docs/testing.md"
        page.write_text("a\n<!-- claims -->\n<!-- end of claims -->\nb\n")
        (Path(folder) / "tests/a_test.cpp").write_text("// Claim: a | b\nTEST(A, One) {\n}\n")
        run = lambda *words: subprocess.run([sys.executable, source / "tools/claims.py", *words, folder], capture_output=True, text=True)
        told = run()
        assert told.returncode == 1 and "lacks: | a \\| b | `A.One` |" in told.stderr, told
        assert run("--write").returncode == 0 and run().returncode == 0
        assert page.read_text().startswith("a\n<!-- claims -->\n| claim | test |\n"), page.read_text()


def main():
    source = Path(sys.argv[1])
    claims = load(source)
    self_check(claims)
    check_program(source)
    done = subprocess.run([sys.executable, source / "tools/claims.py", source], capture_output=True, text=True)
    rows = claims.table(source).count("\n") - 2 if done.returncode == 0 else 0
    print(done.stderr or f"{rows} claims of docs/testing.md are those above tests")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
