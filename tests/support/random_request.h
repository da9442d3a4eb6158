#pragma once
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"
#include "tests/support/random_plan.h"

// Random requests to the planner: a few types on nodes of their own, one of four models.
namespace hetermoe::testing {

struct RequestSizes {
  i64 least_types = 1;
  i64 types = 3;  ///< at most
  i64 nodes = 3;  ///< of a type, at most
  std::vector<i64> per_node = {1, 2, 4};
  std::vector<std::string> models = {"d1", "w1", "d2", "w2"};
  std::vector<i64> seq_lens = {1024, 2048, 4096};
  i64 sequences = 64;  ///< at most
};

inline PlanRequest random_request(u64 seed, const RequestSizes& sizes) {
  static const std::vector<std::string> kTypes = {"H100", "A100-80", "A40", "V100", "T4", "L40S"};
  Chooser choose(seed);
  const auto one_of = [&](const auto& all) {
    return all[static_cast<std::size_t>(choose.below(static_cast<i64>(all.size())))];
  };
  PlanRequest r;
  r.model = load_model(one_of(sizes.models));
  r.cluster.name = fmt::format("random {}", seed);
  const i64 types = choose.between(sizes.least_types, sizes.types),
            begin = choose.below(static_cast<i64>(kTypes.size()));
  for (i64 t = 0; t < types; ++t) {
    const auto type = static_cast<std::size_t>((begin + t) % static_cast<i64>(kTypes.size()));
    r.cluster.types.push_back(catalogue_device(kTypes[type], "test"));
    const i64 nodes = choose.between(1, sizes.nodes), per_node = one_of(sizes.per_node);
    const double network = static_cast<double>(one_of(std::vector<i64>{3, 12, 25, 50})) * 1e9;
    const double local = static_cast<double>(one_of(std::vector<i64>{10, 25, 300})) * 1e9;
    for (i64 n = 0; n < nodes; ++n) {
      r.cluster.nodes.push_back({fmt::format("n{}", r.cluster.nodes.size()), network, 1e-5, local, 5e-6});
      for (i64 d = 0; d < per_node; ++d) {
        r.cluster.devices.push_back(
            {static_cast<i32>(t), static_cast<NodeId>(r.cluster.nodes.size()) - 1, 1});
      }
    }
  }
  r.seq_len = one_of(sizes.seq_lens);
  r.sequences = choose.between(4, sizes.sequences);
  return r;
}

}  // namespace hetermoe::testing
