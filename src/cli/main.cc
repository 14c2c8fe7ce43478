#include <iostream>
#include <string>
#include <vector>

#include "cli/program.h"

int main(int argc, char** argv) {
  return tilewright::cli::RunProgram(std::vector<std::string>(argv + 1, argv + argc), std::cout,
                                     std::cerr);
}
