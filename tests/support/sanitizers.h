// Which sanitizer this is built with: g++ says it with macros, clang with features.
#ifndef TILEWRIGHT_TESTS_SUPPORT_SANITIZERS_H_
#define TILEWRIGHT_TESTS_SUPPORT_SANITIZERS_H_

#if defined(__has_feature)
#define TILEWRIGHT_HAS_FEATURE(name) __has_feature(name)
#else
#define TILEWRIGHT_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || TILEWRIGHT_HAS_FEATURE(address_sanitizer)
#define TILEWRIGHT_ADDRESS_SANITIZER 1
#else
#define TILEWRIGHT_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__) || TILEWRIGHT_HAS_FEATURE(thread_sanitizer)
#define TILEWRIGHT_THREAD_SANITIZER 1
#else
#define TILEWRIGHT_THREAD_SANITIZER 0
#endif

#endif  // TILEWRIGHT_TESTS_SUPPORT_SANITIZERS_H_
