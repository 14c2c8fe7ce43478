"""Applications that embed Tilewright, built against an installed tree and run on the recording driver.

    embedding_test.py --build DIR --source DIR [--cuda-include DIR] [--driver FOLDER] [--whole] [unittest arguments]

--driver is a folder with a libcuda.so.1 to link and run with. --whole also builds Tilewright as a part of another
project, which takes as long as the library takes to compile.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
MAX_STRIPPED_BYTES = 6 << 20


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


class EmbeddingTest(unittest.TestCase):
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

    def run_application(self, application):
        """The program's output on the recording driver."""
        environment = dict(os.environ, TILEWRIGHT_CACHE_DIR=str(self.folder / "store"))
        environment["LD_LIBRARY_PATH"] = f"{self.options.driver}:{self.library.parent}"
        return run([application], env=environment)

    def check_output(self, output):
        self.assertRegex(output, r"launch attn_\w+ \d+ \d+\n")
        self.assertRegex(output, r"plan +attn_")
        self.assertIn("fwd fp32 b=2 h=8/8 s=1000/1000 d=72/72 causal", output)

    def test_cpp_with_find_package(self):
        binary = self.configure("cpp")
        run(["cmake", "--build", binary])
        self.check_output(self.run_application(binary / "application"))

    def test_cpp_with_the_static_library(self):
        binary = self.configure("cpp", "TILEWRIGHT_TARGET=tilewright::static")
        run(["cmake", "--build", binary])
        needed = run(["readelf", "-d", binary / "application"])
        self.assertNotIn("libtilewright", needed)
        self.check_output(self.run_application(binary / "application"))

    def test_c_with_find_package(self):
        binary = self.configure("c")
        run(["cmake", "--build", binary])
        self.check_output(self.run_application(binary / "application"))
        self.assertNotIn("absl", run(["readelf", "-d", binary / "application"]))

    def test_the_readme_shows_these_programs(self):
        readme = (self.options.source / "README.md").read_text()
        for name, language in (
            ("cpp/main.cc", "cpp"),
            ("c/main.c", "c"),
            ("python/five_lines.py", "python"),
        ):
            text = (HERE / name).read_text()
            shown = re.search(
                rf"<!-- {pathlib.Path(name).name} -->\n```{language}\n(.*?)```", readme, re.DOTALL
            )
            self.assertEqual(shown and shown[1], text, name)
            self.assertLessEqual(
                text.count("\n"), {"cpp": 30, "c": 40, "python": 5}[language], name
            )

    def test_pkg_config(self):
        if shutil.which("pkg-config") is None:
            self.skipTest("no pkg-config")
        environment = dict(os.environ, PKG_CONFIG_PATH=str(self.library.parent / "pkgconfig"))
        for module, compiler, source in (
            ("tilewright", ["c++", "-std=c++20"], "cpp/main.cc"),
            ("tilewright-c", ["cc", "-std=c11"], "c/main.c"),
        ):
            flags = run(["pkg-config", "--cflags", "--libs", module], env=environment).split()
            application = self.folder / f"{module}_application"
            run(
                compiler
                + ["-o", application, HERE / source, f"-I{self.options.cuda_include}"]
                + flags
                + [self.driver]
            )
            self.check_output(self.run_application(application))

    def test_the_library_needs_no_cuda(self):
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-d", self.library])))
        allowed = re.compile(
            r"lib(stdc\+\+|crypto|absl_\w+|m|gcc_s|c|asan|ubsan|tsan)\.so[.0-9]*|ld-linux.*"
        )
        self.assertEqual([name for name in needed if not allowed.fullmatch(name)], [])
        self.assertNotRegex(run(["ldd", self.library]), "libcuda|libnvrtc|libcudart")
        soname = re.search(r"SONAME.*\[(.*)\]", run(["readelf", "-d", self.library]))[1]
        self.assertRegex(soname, r"^libtilewright\.so\.\d+$")

    def test_the_library_is_small(self):
        stripped = self.folder / "stripped.so"
        run(["strip", "-o", stripped, self.library])
        self.assertLessEqual(stripped.stat().st_size, MAX_STRIPPED_BYTES)

    def test_only_public_headers_are_installed(self):
        headers = {path.name for path in self.prefix.glob("include/**/*") if path.is_file()}
        public = {path.name for path in (self.options.source / "src/include/tilewright").iterdir()}
        self.assertEqual(headers, public)

    def test_the_installed_program_runs(self):
        self.assertIn(
            "attn_",
            run(
                [
                    self.prefix / "bin/tilewright",
                    "explain",
                    "fwd",
                    "bf16",
                    "d=64",
                    "--arch",
                    "sm_90a",
                ]
            ),
        )

    def check_subproject(self, how):
        binary = self.configure(
            "subproject", f"HOW={how}", f"TILEWRIGHT_SOURCE_DIR={self.options.source}"
        )
        targets = run(["ninja", "-C", binary, "-t", "targets", "all"])
        self.assertNotRegex(targets, r"(?m)^(\w+_test|.*src/cli/.*|install): ")
        if self.options.whole:
            run(["cmake", "--build", binary, "--target", "application", "--parallel", "2"])
            self.check_output(self.run_application(binary / "application"))
        else:
            run(
                [
                    "ninja",
                    "-C",
                    binary,
                    *re.findall(r"(?m)^(CMakeFiles/application\S*main\.cc\.o):", targets),
                ]
            )

    def test_add_subdirectory(self):
        self.check_subproject("add_subdirectory")

    def test_fetch_content(self):
        self.check_subproject("FetchContent")

    def test_debian_packages(self):
        if shutil.which("dpkg-deb") is None:
            self.skipTest("no dpkg-deb")
        run(
            [
                "cpack",
                "--config",
                self.options.build / "CPackConfig.cmake",
                "-B",
                self.folder / "deb",
            ]
        )
        contents = {}
        for package in (self.folder / "deb").glob("*.deb"):
            name = run(["dpkg-deb", "--field", package, "Package"]).strip()
            contents[name] = run(["dpkg-deb", "--contents", package])
            if name == "libtilewright0":
                depends = run(["dpkg-deb", "--field", package, "Depends"])
                self.assertIn("libssl3", depends)
                self.assertNotIn("cuda", depends)
        self.assertEqual(set(contents), {"libtilewright0", "libtilewright-dev", "tilewright"})
        self.assertIn("libtilewright.so.0", contents["libtilewright0"])
        self.assertIn("tilewright-config.cmake", contents["libtilewright-dev"])
        self.assertIn("bin/tilewright", contents["tilewright"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for folder in ("--build", "--source", "--cuda-include", "--driver"):
        parser.add_argument(folder, type=lambda text: pathlib.Path(text).resolve(), required=True)
    parser.add_argument("--whole", action="store_true")
    EmbeddingTest.options, rest = parser.parse_known_args()
    unittest.main(argv=sys.argv[:1] + rest)


if __name__ == "__main__":
    main()
