"""What the tests of an installed Tilewright share: the tree, and a driver that records in the place of the real one.

    TEST.py --build DIR --source DIR --cuda-include DIR --driver FOLDER [--whole] [unittest arguments]

--driver is a folder with a libcuda.so.1 to link and run with. --whole also tries what takes as long as the library takes
to compile.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


def run(command, **options):
    """Output of a command that must succeed."""
    result = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    if result.returncode != 0:
        raise AssertionError(f"{command} gave {result.returncode}:\n{result.stdout}")
    return result.stdout


class InstalledTreeTest(unittest.TestCase):
    options = None  # the command line

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="tilewright_embedding_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = cls.folder / "prefix"
        for component in ("runtime", "development", "program"):
            run(
                [
                    "cmake",
                    "--install",
                    cls.options.build,
                    "--prefix",
                    cls.prefix,
                    "--component",
                    component,
                ]
            )
        (cls.library,) = cls.prefix.glob("**/libtilewright.so.[0-9]*.[0-9]*.[0-9]*")
        cls.driver = cls.options.driver / "libcuda.so.1"

    def configure(self, project, *definitions):
        binary = self.folder / self.id().rpartition(".")[2]
        run(
            [
                "cmake",
                "-S",
                HERE / project,
                "-B",
                binary,
                "-G",
                "Ninja",
                f"-DCMAKE_PREFIX_PATH={self.prefix}",
            ]
            + [
                f"-DCUDA_INCLUDE_DIR={self.options.cuda_include}",
                f"-DCUDA_DRIVER_LIBRARY={self.driver}",
            ]
            + [f"-D{definition}" for definition in definitions]
        )
        return binary

    def environment(self, **more):
        """Of programs that run on the recording driver."""
        environment = dict(os.environ, TILEWRIGHT_CACHE_DIR=str(self.folder / "store"), **more)
        environment["LD_LIBRARY_PATH"] = f"{self.options.driver}:{self.library.parent}"
        return environment

    def run_application(self, application, **more):
        """The program's output on the recording driver."""
        return run([application], env=self.environment(**more))

    def check_output(self, output):
        self.assertRegex(output, r"launch attn_\w+ \d+ \d+\n")
        self.assertRegex(output, r"plan +attn_")
        self.assertIn("fwd fp32 b=2 h=8/8 s=1000/1000 d=72/72 causal", output)


def main(description):
    parser = argparse.ArgumentParser(description=description)
    for folder in ("--build", "--source", "--cuda-include", "--driver"):
        parser.add_argument(folder, type=lambda text: pathlib.Path(text).resolve(), required=True)
    parser.add_argument("--whole", action="store_true")
    InstalledTreeTest.options, rest = parser.parse_known_args()
    unittest.main(argv=sys.argv[:1] + rest)
