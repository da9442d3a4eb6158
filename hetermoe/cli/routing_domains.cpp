#include "hetermoe/cli/routing_domains.h"

#include <algorithm>
#include <iostream>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/report/table.h"

namespace hetermoe {

bool has_domains(const TraceHeader& header, const TraceStep& step) {
  return header.domains.size() > 1 &&
         std::all_of(step.sequences.begin(), step.sequences.end(),
                     [&](const auto& s) { return s.domain < header.domains.size(); });
}

ToldDomains tell_domains(const TraceHeader& header, const TraceStep& step, const Clusters& clusters) {
  ToldDomains out;
  if (!has_domains(header, step)) return out;
  const std::vector<i32> domains = domains_of(step);
  const auto num = static_cast<i64>(header.domains.size());
  const Activations rows = activations(header, step, -1, 0, "");
  const auto tell = [&](const std::vector<i32>& labels, Teller teller) {
    return tell_labels(rows, header.num_experts, labels, num, teller);
  };
  for (const auto& [by, teller] : {std::pair<const char*, Teller>{"nearest mean", told_by_mean},
                                   {"logistic regression", told_by_regression}})
    out.ways.push_back({by, tell(domains, teller), tell(shuffled(domains, 1), teller)});
  out.tested = out.ways[0].right.tested;
  if (out.tested == 0) out.ways.clear();  // too few sequences: nobody was asked
  std::vector<std::vector<double>> members(idx(clusters.num_clusters()), std::vector<double>(idx(num), 0));
  for (std::size_t s = 0; s < domains.size(); ++s)
    members[idx(clusters.of_sequence[s])][idx(domains[s])] += 1;
  for (const std::vector<double>& of_cluster : members)
    out.purity += *std::max_element(of_cluster.begin(), of_cluster.end()) / real(domains.size());
  return out;
}

void print(const ToldDomains& told) {
  if (told.tested == 0) return;
  Table table({"domains told by", "one layer, mean", "least", "most", "vote of layers", "shuffled: one layer",
               "vote"});
  const auto mean_of = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / real(values.size());
  };
  for (const ToldDomains::Way& way : told.ways) {
    const auto [low, high] = std::minmax_element(way.right.of_layer.begin(), way.right.of_layer.end());
    table.add_row({way.by, format_percent(mean_of(way.right.of_layer)), format_percent(*low),
                   format_percent(*high), format_percent(way.right.vote),
                   format_percent(mean_of(way.shuffled.of_layer)), format_percent(way.shuffled.vote)});
  }
  std::cout << "\n"
            << table.str()
            << fmt::format(
                   "{} left out of learning. {} of the sequences are of the domain of most of their "
                   "cluster\n",
                   counted(told.tested, "sequence"), format_percent(told.purity));
}

Json to_json(const ToldDomains& told) {
  Json ways = Json::array();
  for (const ToldDomains::Way& way : told.ways)
    ways.push_back({{"by", way.by},
                    {"of_layer", way.right.of_layer},
                    {"vote", way.right.vote},
                    {"shuffled_of_layer", way.shuffled.of_layer},
                    {"shuffled_vote", way.shuffled.vote}});
  return {{"tested", told.tested}, {"purity", told.purity}, {"told", ways}};
}

}  // namespace hetermoe
