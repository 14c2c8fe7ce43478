"""The structs and functions of tilewright/_c.py are those of tilewright_c.h."""

import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "src/python"))

from tilewright import _c  # noqa: E402

HEADER = (ROOT / "src/include/tilewright/tilewright_c.h").read_text()
STRUCTS = {
    "tw_strides": _c.Strides,
    "tw_bias_term": _c.BiasTerm,
    "tw_snippet_array": _c.SnippetArray,
    "tw_snippet_scalar": _c.SnippetScalar,
    "tw_options": _c.Options,
    "tw_spec": _c.Spec,
    "tw_tensor": _c.Tensor,
    "tw_bias_tensor": _c.BiasTensor,
    "tw_bias_gradient": _c.BiasGradient,
    "tw_args": _c.Args,
    "tw_counters": _c.Counters,
    "tw_tune_progress": _c.TuneProgress,
    "tw_tune_options": _c.TuneOptions,
    "tw_merge_spec": _c.MergeSpec,
    "tw_merge_args": _c.MergeArgs,
    "tw_append_spec": _c.AppendSpec,
    "tw_append_args": _c.AppendArgs,
}


def layout_in_python():
    lines = []
    for name, struct in STRUCTS.items():
        for field, *_ in struct._fields_:
            member = getattr(struct, field)
            lines.append(f"{name}.{field} {member.offset} {member.size}")
        lines.append(f"{name} {ctypes.sizeof(struct)}")
    return lines


def fields_of(name):
    """Names of the fields of a struct in the header."""
    body = re.search(r"typedef struct %s \{(.*?)\n\} %s;" % (name, name), HEADER, re.DOTALL)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    return [
        re.search(r"(\w+)(\[\d+\])?$", line.strip())[1] for line in body.split(";") if line.strip()
    ]


class CInterfaceTest(unittest.TestCase):
    def test_every_struct_has_the_fields_of_the_header(self):
        declared = set(re.findall(r"typedef struct (\w+) \{", HEADER))
        self.assertEqual(declared, set(STRUCTS))
        for name, struct in STRUCTS.items():
            self.assertEqual([field for field, *_ in struct._fields_], fields_of(name), name)

    def test_fields_lie_where_a_compiler_puts_them(self):
        compiler = os.environ.get("CC") or shutil.which("cc")
        if compiler is None:
            self.skipTest("no C compiler")
        source = ['#include "tilewright/tilewright_c.h"', "#include <stdio.h>", "int main(void) {"]
        for name in STRUCTS:
            for field in fields_of(name):
                source.append(
                    f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));'
                )
            source.append(f'printf("{name} %zu\\n", sizeof({name}));')
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "layout.c").write_text("\n".join(source + ["}"]))
            subprocess.run(
                [
                    compiler,
                    "-std=c11",
                    f"-I{ROOT}/src/include",
                    "-o",
                    path / "layout",
                    path / "layout.c",
                ],
                check=True,
            )
            output = subprocess.run(
                [path / "layout"], check=True, capture_output=True, text=True
            ).stdout
        self.assertEqual(layout_in_python(), output.splitlines())

    def test_every_function_is_there_with_its_number_of_arguments(self):
        declared = {}
        for name, arguments in re.findall(r"\nTW_API [^(]*?\b(tw_\w+)\(([^)]*)\);", HEADER):
            declared[name] = 0 if arguments == "void" else arguments.count(",") + 1
        self.assertEqual(
            declared, {name: len(arguments) for name, (_, arguments) in _c._PROTOTYPES.items()}
        )

    def test_enumerations(self):
        values = {}
        for body in re.findall(
            r"enum \{(.*?)\}", re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL), re.DOTALL
        ):
            values.update(
                (name, int(value)) for name, value in re.findall(r"TW_(\w+) = (-?\d+)", body)
            )
        for name, value in values.items():
            if hasattr(_c, name):
                self.assertEqual(getattr(_c, name), value, name)
        for n, policy in enumerate(_c.TUNE_POLICIES):
            self.assertEqual(values[f"TUNE_{policy.upper()}"], n)
        for n, level in enumerate(_c.LOG_LEVELS):
            self.assertEqual(values[f"LOG_{level.upper()}"], n)
        self.assertEqual(len(_c.ELEMENT_NAMES), 1 + max(_c.INT32, _c.BOOL))


def fields_in_cpp(header, name):
    """Names of the data members of a struct of the C++ interface."""
    text = re.sub(r"//.*", "", (ROOT / "src/include/tilewright" / header).read_text())
    body = re.search(r"\nstruct %s \{(.*?)\n\};" % name, text, re.DOTALL)[1]
    body = re.sub(r"\{[^{}]*\}", "", body)
    names = []
    for statement in body.split(";"):
        is_field = "operator" not in statement and "(" not in statement.partition("=")[0]
        statement = statement.partition("=")[0].strip()
        if statement and is_field:
            names.append(statement.split()[-1])
    return names


class CppInterfaceTest(unittest.TestCase):
    """Everything that the C++ interface does the C interface does."""

    # Where the two have different names: in C++, in C.
    RENAMED = {
        "score_snippet": "score_snippet score_snippet_file",
        "mask_snippet": "mask_snippet mask_snippet_file",
        "mask_tile_snippet": "mask_tile_snippet mask_tile_snippet_file",
        "score_gradient_snippet": "score_gradient_snippet score_gradient_snippet_file",
    }
    # Methods of classes, and functions. Others are called by their name: Flush, tw_flush.
    FUNCTIONS = {
        "Create": "tw_runtime_create",
        "FromEnvironment": "tw_options_from_environment",
        "Attention": "tw_attention_once",
        "ParseSpec": "tw_prepare_text",
        "Explain": "tw_explain",
        "counters": "tw_runtime_counters",
        "valid": "tw_prepare",  # a handle of C is valid or null
        "state": "tw_prepare",  # of the implementation
    }

    def test_every_field_is_there(self):
        for header, cpp, c in (
            ("options.h", "RuntimeOptions", "tw_options"),
            ("attention.h", "AttentionSpec", "tw_spec"),
            ("attention.h", "AttentionArgs", "tw_args"),
            ("attention.h", "BiasTerm", "tw_bias_term"),
            ("attention.h", "SnippetArray", "tw_snippet_array"),
            ("attention.h", "SnippetScalar", "tw_snippet_scalar"),
            ("runtime.h", "RuntimeCounters", "tw_counters"),
            ("options.h", "TuneOptions", "tw_tune_options"),
            ("options.h", "TuneProgress", "tw_tune_progress"),
            ("merge.h", "MergeSpec", "tw_merge_spec"),
            ("merge.h", "MergeArgs", "tw_merge_args"),
            ("cache_append.h", "CacheAppendSpec", "tw_append_spec"),
            ("cache_append.h", "CacheAppendArgs", "tw_append_args"),
        ):
            names = fields_in_cpp(header, cpp)
            self.assertGreater(len(names), 1)
            for name in names:
                for expected in self.RENAMED.get(name, name).split():
                    self.assertIn(expected, fields_of(c), f"{cpp}::{name}")

    def test_every_function_is_there(self):
        names = set()
        for header in ("runtime.h", "options.h"):
            text = (ROOT / "src/include/tilewright" / header).read_text()
            text = re.sub(r"\n private:.*?\n\};", "\n};", text, flags=re.DOTALL)
            names |= set(re.findall(r"(?m)^ {0,2}(?!//)[\w:<>&*, ]+ \*?(\w+)\(", text))
        names -= {"Runtime", "PreparedAttention"}  # constructors
        self.assertIn("Warmup", names)
        for name in names:
            snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
            self.assertIn(self.FUNCTIONS.get(name, f"tw_{snake}"), _c._PROTOTYPES, name)


if __name__ == "__main__":
    unittest.main()
