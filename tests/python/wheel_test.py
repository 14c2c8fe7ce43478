"""`pip install .` into a fresh environment, and a call there.

TEST_DEFINES: further CMake definitions, NAME=VALUE separated by spaces. libcuda.so.1 on the loader's path is the
recording one. Skipped where pip cannot fetch scikit-build-core.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

SCRIPT = """
import pathlib, sys
import tilewright
from fake_arrays import FakeArray
assert pathlib.Path(tilewright.library().path).is_relative_to(sys.prefix), tilewright.library().path
array = FakeArray((1, 20, 2, 16))
tilewright.set_default_runtime(tilewright.Runtime(cache_in_memory=True))
assert tilewright.attention(array, array, array, causal=True).shape == array.shape
print("version", tilewright.version())
"""


def run(command, **options):
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    return result.returncode, result.stdout


def main():
    with tempfile.TemporaryDirectory() as folder:
        python = pathlib.Path(folder) / "bin/python"
        status, output = run([sys.executable, "-m", "venv", folder])
        if status:
            print(f"SKIPPED: no virtual environments on this machine\n{output}")
            return 77
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
        status, output = run(
            pip + ["download", "--no-deps", "--retries", "1", "-d", folder, "scikit-build-core"]
        )
        if status:
            print(f"SKIPPED: pip cannot fetch scikit-build-core\n{output}")
            return 77
        defines = [f"-Ccmake.define.{text}" for text in os.environ.get("TEST_DEFINES", "").split()]
        status, output = run(pip + ["install", *defines, str(ROOT)])
        print(output)
        if status:
            return 1
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "tests/python"))
        status, output = run([python, "-B", "-c", SCRIPT], env=environment, cwd=folder)
        print(output)
        return int(status != 0 or "version 0." not in output)


if __name__ == "__main__":
    sys.exit(main())
