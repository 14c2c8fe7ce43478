// The version of the library. A part of the key of every stored kernel.
#ifndef TILEWRIGHT_VERSION_H_
#define TILEWRIGHT_VERSION_H_

#define TILEWRIGHT_VERSION_MAJOR 0
#define TILEWRIGHT_VERSION_MINOR 1
#define TILEWRIGHT_VERSION_PATCH 0
#define TILEWRIGHT_VERSION_STRING "0.1.0"

#endif  // TILEWRIGHT_VERSION_H_
