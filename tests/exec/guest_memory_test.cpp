#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "hetermoe/sim/memory.h"
#include "tests/exec/metered_step.h"
#include "tests/support/guest_plan.h"

// What copies of experts take on a device, for a run or for one exchange: what the executor holds is what the
// memory model says.
namespace hetermoe::testing {
namespace {

struct Held {
  std::vector<Bytes> measured, modelled;  ///< [device] peaks, state included
  i64 guests = 0;
};

Held held(const ModelConfig& model, const Cluster& cluster, const Plan& plan) {
  MeteredStep step(model, cluster, plan);
  Rig& rig = step.rig;
  Held out;
  out.measured = step.peaks();
  const RecordedRouting routing = rig.executor().recorded_routing();
  const OpCosts costs = price(rig.schedule(), rig.placement(), model, cluster, step.cost, routing);
  // As the virtual clock has it, each transfer alone on its links: what overlaps decides about the peak.
  for (const MemoryPeak& peak : peak_memory(rig.schedule(), longest_path(rig.schedule(), costs.seconds),
                                            rig.placement(), model, cluster, routing))
    out.modelled.push_back(peak.use.total());
  for (const std::unique_ptr<DeviceState>& state : rig.states())
    out.measured[static_cast<std::size_t>(state->device())] += static_cast<Bytes>(state->store().bytes());
  for (const Op& op : rig.schedule().ops) {
    if (op.kind == OpKind::kLend)
      out.guests += static_cast<i64>(
          routing.exchange(rig.placement(), op.group, op.layer, op.microbatch, 0).guests.size());
  }
  return out;
}

StrategyRequest small_request() {
  StrategyRequest request;
  request.seq_len = 256;
  request.sequences = 8;
  request.microbatches = 2;
  return request;
}

Cluster flash_demo() {
  at::set_num_threads(1);
  Cluster cluster = load_cluster("demo");
  for (DeviceType& type : cluster.types) type.attention_kernel = AttentionKernel::kFlash;
  return cluster;
}

// Claim (GuestMemory.IsTheModels, ReplicaMemory.IsTheModels): guests and replicas in memory: the executor
// holds what the model says within 2 %, and what they add is what it says within 2 %
TEST(GuestMemory, IsTheModels) {
  const ModelConfig model = load_model("demo");
  const Cluster cluster = flash_demo();
  double worst = 0, added = 0;
  i64 guests = 0;
  Bytes more = 0;
  for (const char* strategy : {"zebra", "ep", "ep-overlap", "dist-ep"}) {
    for (const Recompute recompute : {Recompute::kLocal, Recompute::kOff}) {
      Plan plan = find_strategy(strategy).make(model, cluster, small_request());
      use_dtype(plan, Dtype::kFp32);
      plan.recompute = recompute;
      const Held without = held(model, cluster, plan);
      use_guests(plan, model);
      const Held with = held(model, cluster, plan);
      guests += with.guests;
      for (std::size_t d = 0; d < with.measured.size(); ++d) {
        const double ratio = with.modelled[d] / with.measured[d];
        EXPECT_NEAR(ratio, 1, 0.02) << strategy << " " << name_of(recompute) << " device " << d;
        // What guests add, beside what the model is off by without them.
        const double before = without.modelled[d] / without.measured[d];
        EXPECT_NEAR(ratio, before, 0.02) << strategy << " " << name_of(recompute) << " device " << d;
        added = std::max(added, std::abs(ratio - before));
        worst = std::max(worst, std::abs(ratio - 1));
        more = std::max(more, with.measured[d] - without.measured[d]);
      }
    }
  }
  EXPECT_GT(guests, 50);
  EXPECT_GT(more, 100e3);  // they are seen at all
  std::cout << fmt::format(
      "[          ] {} guests, the model is off by {:.2f} % at worst, by {:.2f} % more or less than without "
      "them\n",
      guests, 100 * worst, 100 * added);
}

/// Owners of every layer by `eplb`, two copies more on each owner in the mean, by shares.
void use_eplb(Plan& plan, const ModelConfig& model) {
  for (LayerPlacement& layer : plan.groups[0].layers) {
    if (layer.experts.empty()) continue;
    std::set<DeviceId> owners;
    for (const ExpertOwners& of_expert : layer.experts) owners.insert(of_expert[0].device);
    BalanceInput input;
    for (const DeviceId owner : owners) input.devices.push_back({.id = owner});
    input.load = even_load(1, model.num_experts);
    for (std::size_t e = 0; e < input.load[0].size(); ++e) input.load[0][e] += static_cast<double>(e % 3);
    input.replicas = 2 * static_cast<i64>(owners.size());
    layer.experts = find_balancer("eplb").place(input)[0];
  }
}

/// Ways to have copies of experts: by shares, by counts, and lent ones beside those that stay.
struct Copies {
  const char* name;
  void (*use)(Plan&, const ModelConfig&);
};
const std::vector<Copies> kCopies = {
    {"eplb", use_eplb},
    {"lplb", use_lplb},
    {"lplb and guests",
     [](Plan& plan, const ModelConfig& model) {
       use_lplb(plan, model);
       use_guests(plan, model);
     }},
};

TEST(ReplicaMemory, IsTheModels) {
  const ModelConfig model = load_model("demo");
  const Cluster cluster = flash_demo();
  double worst = 0, added = 0;
  i64 guests = 0;
  for (const char* strategy : {"zebra", "ep", "ep-overlap", "dist-ep"}) {
    Plan plan = find_strategy(strategy).make(model, cluster, small_request());
    use_dtype(plan, Dtype::kFp32);
    const Held without = held(model, cluster, plan);
    for (const Copies& copies : kCopies) {
      Plan copied = plan;
      copies.use(copied, model);
      const Held with = held(model, cluster, copied);
      guests += with.guests;
      Bytes more = 0, foretold = 0;
      for (std::size_t d = 0; d < with.measured.size(); ++d) {
        const double ratio = with.modelled[d] / with.measured[d];
        EXPECT_NEAR(ratio, 1, 0.02) << strategy << " " << copies.name << " device " << d;
        worst = std::max(worst, std::abs(ratio - 1));
        more += with.measured[d] - without.measured[d];
        foretold += with.modelled[d] - without.modelled[d];
      }
      // All devices together, for copies move rows from one to another.
      EXPECT_GT(more, 1e6) << strategy << " " << copies.name;
      EXPECT_NEAR(foretold / more, 1, 0.02) << strategy << " " << copies.name;
      added = std::max(added, std::abs(foretold / more - 1));
    }
  }
  EXPECT_GT(guests, 0);
  std::cout << fmt::format(
      "[          ] the model is off by {:.2f} % at worst, in what copies add by {:.2f} %; {} guests\n",
      100 * worst, 100 * added, guests);
}

}  // namespace
}  // namespace hetermoe::testing
