// Counters of a store summed over all processes that used it, for people (`cache stats`): nothing
// decides by them.
#ifndef TILEWRIGHT_CACHE_TOTALS_H_
#define TILEWRIGHT_CACHE_TOTALS_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tilewright::cache {

// By name: [a-z_]+, not negative.
using Totals = std::map<std::string, double>;

// Adds `more`; names that are new begin at 0.
void Accumulate(const Totals& more, Totals* sum);

// One line "NAME VALUE\n" each, ascending by name.
std::string SerializeTotals(const Totals& totals);
// Nothing for any other text: the sums then begin anew.
std::optional<Totals> ParseTotals(std::string_view text);

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_TOTALS_H_
