// Integer types of known size for structs that host and device share. NVRTC has no <cstdint>, and
// the kernel templates include nothing from outside this folder.
#ifndef TILEWRIGHT_ABI_FIXED_WIDTH_H_
#define TILEWRIGHT_ABI_FIXED_WIDTH_H_

namespace tilewright {
namespace abi {

using u8 = unsigned char;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

static_assert(sizeof(i32) == 4 && sizeof(i64) == 8 && sizeof(void*) == 8, "LP64 only");

}  // namespace abi
}  // namespace tilewright

#endif  // TILEWRIGHT_ABI_FIXED_WIDTH_H_
