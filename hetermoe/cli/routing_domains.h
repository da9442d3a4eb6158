#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/routing/domain_use.h"
#include "hetermoe/routing/told.h"

// Output of `routing cluster` on the domains of a trace's sequences.
namespace hetermoe {

bool has_domains(const TraceHeader& header, const TraceStep& step);

struct ToldDomains {
  struct Way {
    std::string by;
    Told right, shuffled;  ///< the domains, and the same in another order
  };
  std::vector<Way> ways;
  i64 tested = 0;     ///< sequences that were left out of learning; 0 = there are no domains
  double purity = 0;  ///< share of sequences whose domain is that of most of their cluster
};
ToldDomains tell_domains(const TraceHeader& header, const TraceStep& step, const Clusters& clusters);

void print(const ToldDomains& told);
Json to_json(const ToldDomains& told);

}  // namespace hetermoe
