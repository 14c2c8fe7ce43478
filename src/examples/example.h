// Examples of user rules: scores and masks that a spec has no word for, written as snippets. Each
// file of this folder is one rule, to be read and copied:
//   - the text that goes into AttentionSpec::score_snippet or mask_snippet, and where it is worth
//     it into mask_tile_snippet,
//   - the arrays and scalars that it reads,
//   - the same rule in C++, which tests hold the kernels against.
// The README's table "Coming from FlexAttention" lists them.
#ifndef TILEWRIGHT_EXAMPLES_EXAMPLE_H_
#define TILEWRIGHT_EXAMPLES_EXAMPLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/reference.h"
#include "tilewright/attention.h"

namespace tilewright::examples {

// A device array, here with what to fill it with.
struct ExampleArray {
  SnippetArray declaration;
  std::vector<std::byte> bytes;
};
struct ExampleScalar {
  SnippetScalar declaration;
  double value = 0;
};

struct Example {
  std::string score;           // text of the score snippet; empty: none
  std::string mask;            // text of the mask snippet; empty: none
  std::string mask_tile = "";  // text of the mask tile snippet; empty: none
  std::vector<ExampleArray> arrays;
  std::vector<ExampleScalar> scalars;
  reference::Callables rules;  // the same in C++

  Example& Ints(std::string name, const std::vector<int32_t>& values);
  Example& Floats(std::string name, const std::vector<float>& values);
  Example& Scalar(std::string name, int64_t value);
  Example& Scalar(std::string name, float value);

  // Sets the snippets of `spec` and declares what they read.
  void AddTo(AttentionSpec* spec) const;
};

// An example as a list of them holds it: `make` builds it for the heads and the lengths of a spec.
struct NamedExample {
  std::string name;  // of its file
  Example (*make)(const AttentionSpec& spec);
};
const std::vector<NamedExample>& AllExamples();

// `count` numbers in [-1, 1], the same in every run: tables that a model would have learnt.
std::vector<float> ExampleTable(int64_t count);

Example ChunkedAttention(const AttentionSpec& spec);
Example DecomposedPosition(const AttentionSpec& spec);
Example DilatedWindow(const AttentionSpec& spec);
Example DocumentMask(const AttentionSpec& spec);
Example GemmaSoftcap(const AttentionSpec& spec);
Example NeighbourhoodMask(const AttentionSpec& spec);
Example PrefixLm(const AttentionSpec& spec);
Example RelativeShift(const AttentionSpec& spec);
Example StreamingSinks(const AttentionSpec& spec);
Example T5Buckets(const AttentionSpec& spec);
Example TreeMask(const AttentionSpec& spec);

}  // namespace tilewright::examples

#endif  // TILEWRIGHT_EXAMPLES_EXAMPLE_H_
