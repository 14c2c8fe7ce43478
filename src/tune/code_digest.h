// Which version of a family's templates a measurement was made with.
#ifndef TILEWRIGHT_TUNE_CODE_DIGEST_H_
#define TILEWRIGHT_TUNE_CODE_DIGEST_H_

#include <string>

#include "emit/template_bundle.h"
#include "plan/kernel_plan.h"

namespace tilewright::tune {

// 16 hex digits over the family's file and all that it includes, directly or not: a change of
// another family's file leaves them alone.
std::string CodeDigest(const emit::TemplateBundle& bundle, plan::Family family);

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_CODE_DIGEST_H_
