// What the shared library shows: everything else is built with hidden visibility, so that it meets
// no other copy in the process.
#ifndef TILEWRIGHT_EXPORT_H_
#define TILEWRIGHT_EXPORT_H_

#define TILEWRIGHT_API __attribute__((visibility("default")))
#define TILEWRIGHT_LOCAL __attribute__((visibility("hidden")))

#endif  // TILEWRIGHT_EXPORT_H_
