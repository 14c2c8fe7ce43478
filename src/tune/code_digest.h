// Which version of the templates a measurement was made with.
#ifndef TILEWRIGHT_TUNE_CODE_DIGEST_H_
#define TILEWRIGHT_TUNE_CODE_DIGEST_H_

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "base/mutex.h"
#include "emit/template_bundle.h"
#include "plan/kernel_plan.h"

namespace tilewright::tune {

// Thread-safe. Remembers what it has found, as it is asked at every look-up and reads some hundred
// kilobytes for an answer.
class CodeDigests {
 public:
  // `bundle` outlives the object.
  explicit CodeDigests(const emit::TemplateBundle* bundle) : bundle_(bundle) {}

  // 16 hex digits over the files of all families of the candidates, also of the kernels before and
  // after them, and all that these include, directly or not: whichever of them changes, another
  // candidate may be the quickest. A change of other families' files leaves them alone.
  std::string Of(absl::Span<const plan::KernelPlan> candidates);

 private:
  const emit::TemplateBundle* const bundle_;
  Mutex mutex_;
  std::map<std::set<std::string_view>, std::string> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_CODE_DIGEST_H_
