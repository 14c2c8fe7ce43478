// TILEWRIGHT_CHECK: for invariants of our own that are broken, never for input, environment or
// files.
#ifndef TILEWRIGHT_BASE_CHECK_H_
#define TILEWRIGHT_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define TILEWRIGHT_CHECK(condition)                                                          \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

#endif  // TILEWRIGHT_BASE_CHECK_H_
