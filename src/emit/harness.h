// A program around one kernel, to compile, run, profile and debug it alone.
#ifndef TILEWRIGHT_EMIT_HARNESS_H_
#define TILEWRIGHT_EMIT_HARNESS_H_

#include <vector>

#include "absl/types/span.h"
#include "artifact/kernel_source.h"
#include "emit/template_bundle.h"
#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright::emit {

// The translation unit `source`, its generated headers and those files of `bundle` that it
// includes, directly or through others, sorted by name: with these in DIR,
//   nvcc -std=c++20 -arch=<target> -I DIR -cubin DIR/<entry>.cu
// compiles the kernel.
std::vector<artifact::SourceFile> StandaloneFiles(const artifact::KernelSource& source,
                                                  const TemplateBundle& bundle);

// main.cu, to lie beside them: allocates what a call of `spec` needs at its own sizes, dense, fills
// it with pseudo-random numbers (page tables count up, block masks and scales are all ones, arrays
// of snippets are 1 MiB of zeros), launches the kernel a few times and prints the time and a
// checksum.
//   nvcc -std=c++20 -arch=<target> -I DIR -o harness DIR/main.cu
artifact::SourceFile HarnessProgram(const AttentionSpec& spec, const plan::KernelPlan& plan,
                                    const artifact::KernelSource& source);

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_EMIT_HARNESS_H_
