"""Every block of code in README.md, compiled and run.

A block has a comment with its name above it; a name that no test here knows is an error. installed_tree.py has the
command line. --whole also tries the steps of installation, from a clone, and the CUDA wheels.
"""

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True

import installed_tree  # noqa: E402
from installed_tree import HERE, run  # noqa: E402

BLOCK = re.compile(r"(?:<!-- (\S+) -->\n)?```(\w*)\n(.*?)```", re.DOTALL)
# Blocks that are files of this folder, with the most lines that README.md promises for them.
FILES = {
    "main.cc": ("cpp/main.cc", 30),
    "main.c": ("c/main.c", 40),
    "five_lines.py": ("python/five_lines.py", 5),
    "register.py": ("python/register.py", None),
    "paged_decoder.h": ("cpp/paged_decoder.h", None),
}
TRIED = {
    *("front-door", "demo-run", "h200-run", "steps", "CMakeLists.txt", "document_mask.cc", "ship"),
    *("compare", "cuda-wheels"),
}


def have_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def normalised(transcript):
    """Without what differs between runs and machines: times, keys, errors of rounding."""
    lines = []
    for line in transcript.splitlines():
        if not line.startswith(("plan ", "spec ", "$ ")):
            line = re.sub(r"[0-9a-f]{16}\.\.\.|\d+(\.\d+)?(e[-+]\d+)?", "N", line)
        if not line.startswith("device "):  # which names what the loader said
            lines.append(line)
    return "\n".join(lines)


class ReadmeTest(installed_tree.InstalledTreeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        readme = (cls.options.source / "README.md").read_text()
        cls.blocks = {name: text for name, _, text in BLOCK.findall(readme)}

    def commands(self, name):
        return [line.split(" #")[0].strip() for line in self.blocks[name].splitlines() if line]

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def test_every_block_is_known(self):
        self.assertEqual(set(self.blocks), TRIED | set(FILES))

    def test_programs_are_those_of_this_folder(self):
        for name, (path, most_lines) in FILES.items():
            text = (HERE / path).read_text()
            self.assertEqual(self.blocks[name], text, name)
            if most_lines:
                self.assertLessEqual(text.count("\n"), most_lines, name)

    def test_the_front_door_is_there(self):
        for command in self.commands("front-door"):
            run([*shlex.split(command), "--dry-run"], cwd=self.options.source)

    def test_the_transcript_of_the_demo(self):
        if have_driver():
            self.skipTest("the transcript is of a machine without a GPU")
        transcript = self.blocks["demo-run"]
        environment = dict(os.environ, TILEWRIGHT_CACHE_DIR=str(self.folder / "demo-store"))
        for part in re.split(r"\n(?=\$ )", transcript)[1:]:
            line, expected = part.split("\n", 1)
            words = shlex.split(line.removeprefix("$ "))
            self.assertEqual(words[0], "tilewright")
            words[0] = self.prefix / "bin/tilewright"
            output = run(words, cwd=self.options.source, env=environment)
            self.assertEqual(normalised(output.strip()), normalised(expected.strip()), "make readme")

    def test_the_transcript_of_the_h200_is_the_recorded_one(self):
        recorded = self.options.source / "bench/results/h200/readme_run.txt"
        self.assertEqual(self.blocks["h200-run"], recorded.read_text(), "make readme")

    def test_the_project_of_an_application(self):
        self.write("project/CMakeLists.txt", self.blocks["CMakeLists.txt"])
        self.write("project/main.cc", self.blocks["main.cc"])
        binary = self.configure(self.folder / "project", f"CMAKE_MODULE_PATH={HERE / 'readme'}")
        run(["cmake", "--build", binary])
        self.check_output(self.run_application(binary / "application"))

    def test_the_paged_decoder(self):
        binary = self.configure("cpp")
        run(["cmake", "--build", binary, "--target", "decode"])
        output = self.run_application(binary / "decode")
        self.assertRegex(
            output, r"launch cache_append\w* \d+ \d+\nlaunch attn_decode\w* \d+ \d+\n"
        )
        self.assertIn("largest difference", output)

    def test_the_mask(self):
        snippet = self.write("document_mask.inc", self.blocks["document_mask.cc"])
        binary = self.configure("cpp", f"SNIPPET={snippet}")
        run(["cmake", "--build", binary, "--target", "mask"])
        self.assertRegex(self.run_application(binary / "mask"), r"fwd bf16 .*mask=")

    def test_how_to_ship(self):
        self.write("ship/shapes.txt", "fwd fp32 b=2 h=8 s=1000 d=72 causal\n")
        binary = self.configure("cpp")
        run(["cmake", "--build", binary])
        shutil.copy(binary / "application", self.folder / "ship")
        environment = self.environment(PATH=f"{self.prefix}/bin:{os.environ['PATH']}")
        *fill, start = self.commands("ship")
        for command in fill:
            run(["sh", "-c", command], cwd=self.folder / "ship", env=environment)
        # On another machine: an empty store and no compiler.
        environment["TILEWRIGHT_CACHE_DIR"] = str(self.folder / "elsewhere")
        environment["TILEWRIGHT_NVRTC_PATH"] = "/nowhere"
        self.check_output(run(["sh", "-c", start], cwd=self.folder / "ship", env=environment))

    def test_the_comparison_takes_these_arguments(self):
        for command in self.commands("compare"):
            words = shlex.split(command)
            output = run([sys.executable, *words[1:], "--list"], cwd=self.options.source)
            self.assertIn(words[words.index("--spec") + 1], output)

    def test_the_steps_of_installation(self):
        if not self.options.whole:
            self.skipTest("only with --whole: it builds everything")
        destination = self.folder / "root"
        script = self.blocks["steps"].replace("URL", str(self.options.source))
        script = script.replace("sudo ", f"DESTDIR={destination} ")
        environment = dict(os.environ, CUDAToolkit_ROOT=str(self.options.cuda_include.parent))
        run(["bash", "-euc", script], cwd=self.folder, env=environment)
        (library,) = destination.glob("**/libtilewright.so")
        project = self.write("user/CMakeLists.txt", self.blocks["CMakeLists.txt"]).parent
        self.write("user/main.cc", self.blocks["main.cc"])
        prefix = f"CMAKE_PREFIX_PATH={destination}/usr/local"
        binary = self.configure(project, f"CMAKE_MODULE_PATH={HERE / 'readme'}", prefix)
        run(["cmake", "--build", binary])
        self.check_output(self.run_application(binary / "application"))

    def test_cuda_from_wheels(self):
        if not self.options.whole:
            self.skipTest("only with --whole: it downloads the wheels")
        wheels = self.folder / "cuda-wheels"
        install, check = (
            line.replace("/opt/cuda-wheels", str(wheels)) for line in self.commands("cuda-wheels")
        )
        words = shlex.split(install)
        result = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            self.skipTest(f"pip cannot install the wheels: {result.stderr[-300:]}")
        run([*shlex.split(check), "--dry-run"], cwd=self.options.source)
        binary = self.folder / "with-wheels"
        configured = run(
            ["cmake", "-S", self.options.source, "-B", binary, "-G", "Ninja"]
            + [f"-DCUDAToolkit_ROOT={wheels}", "-DTILEWRIGHT_BUILD_TESTS=OFF"],
            env={**os.environ, "CUDAToolkit_ROOT": "", "CUDA_HOME": "", "CUDA_PATH": ""},
        )
        self.assertIn("Configuring done", configured)
        cache = (binary / "CMakeCache.txt").read_text()
        self.assertIn(f"TILEWRIGHT_NVRTC_INCLUDE_DIR:PATH={wheels}", cache)


if __name__ == "__main__":
    installed_tree.main(__doc__.split("\n")[0])
