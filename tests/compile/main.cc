// The tests, and the compiler's helper process of these tests.
#include <gtest/gtest.h>

#include <string_view>

#include "compile/compiler_helper.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == tilewright::compile::kHelperVerb) {
    return tilewright::compile::ServeCompile(0);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
