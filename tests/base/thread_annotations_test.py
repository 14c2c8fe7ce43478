"""Every source whose class names the lock of a member passes clang's thread-safety analysis.

  thread_annotations_test.py --clang clang++ [INCLUDE FOLDER...]

g++ takes the annotations for comments, so that the release build alone would let them become false.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ANNOTATED = re.compile(r"GUARDED_BY|LOCKS_REQUIRED|EXCLUSIVE_LOCK|SHARED_LOCK")

# Reads without the lock: the analysis must be on, or every source would pass.
UNGUARDED = """
#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
class Counter {
 public:
  int Get() const { return count_; }
 private:
  tilewright::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};
int Read(const Counter& counter) { return counter.Get(); }
"""


def sources():
    """The sources that, or whose header of the same name, hold annotations."""
    found = []
    for folder in ("src", "cache", "tests"):
        for source in sorted((ROOT / folder).rglob("*.cc")):
            files = [source, source.with_suffix(".h")]
            if any(f.exists() and ANNOTATED.search(f.read_text()) for f in files):
                found.append(source)
    return found


def analyse(source):
    includes = [ROOT, ROOT / "src", ROOT / "src/include", ROOT / "kernel_templates"]
    command = [options.clang, "-fsyntax-only", "-std=c++20", "-Wthread-safety", "-Werror"]
    command.append(f'-DTILEWRIGHT_SOURCE_DIR="{ROOT}"')
    command += [f"-I{folder}" for folder in [*includes, *options.includes]]
    return subprocess.run([*command, str(source)], capture_output=True, text=True)


class ThreadAnnotationsTest(unittest.TestCase):
    def test_every_annotated_source_passes(self):
        found = sources()
        self.assertGreater(len(found), 10)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for source, result in zip(found, pool.map(analyse, found)):
                with self.subTest(source.relative_to(ROOT)):
                    self.assertEqual(result.returncode, 0, result.stderr[:2000])

    def test_a_read_without_the_lock_is_refused(self):
        with tempfile.TemporaryDirectory() as directory:
            source = pathlib.Path(directory) / "counter.cc"
            source.write_text(UNGUARDED)
            result = analyse(source)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("requires holding mutex", result.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clang", default="clang++")
    parser.add_argument("includes", nargs="*", help="further folders of headers")
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
