// Reads the loader's cache (/etc/ld.so.cache): which file the loader would map for a bare library
// name, without asking the loader to do it.
#ifndef TILEWRIGHT_COMPILE_LD_CACHE_H_
#define TILEWRIGHT_COMPILE_LD_CACHE_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tilewright::compile {

// (name, path) of every library of this machine's ABI in the cache whose name starts with `prefix`,
// in the cache's order. `bytes` is the file's content in the format that glibc has written since
// 2.2 ("glibc-ld.so.cache1.1", possibly behind the older table); anything else, or a damaged file,
// gives what could be read.
std::vector<std::pair<std::string, std::string>> LibrariesInLdCache(std::string_view bytes,
                                                                    std::string_view prefix);

}  // namespace tilewright::compile

#endif  // TILEWRIGHT_COMPILE_LD_CACHE_H_
