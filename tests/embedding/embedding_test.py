"""Applications that embed Tilewright, built against an installed tree and run on the recording driver.

installed_tree.py has the command line. --whole also builds Tilewright as a part of another project.
"""

import os
import re
import shutil
import sys

sys.dont_write_bytecode = True

import installed_tree  # noqa: E402
from installed_tree import HERE, run  # noqa: E402

MAX_STRIPPED_BYTES = 6 << 20


class EmbeddingTest(installed_tree.InstalledTreeTest):
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


if __name__ == "__main__":
    installed_tree.main(__doc__.split("\n")[0])
