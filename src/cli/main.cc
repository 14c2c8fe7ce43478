#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/program.h"
#include "compile/compiler_helper.h"

int main(int argc, char** argv) {
  // Not for people: a program that isolates its compiler starts this one (compiler_helper.h).
  if (argc == 2 && std::string_view(argv[1]) == tilewright::compile::kHelperVerb) {
    return tilewright::compile::ServeCompile(0);
  }
  return tilewright::cli::RunProgram(std::vector<std::string>(argv + 1, argv + argc), std::cout,
                                     std::cerr);
}
