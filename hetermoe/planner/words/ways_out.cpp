#include "hetermoe/planner/words/ways_out.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/estimate/host_use.h"
#include "hetermoe/planner/request_check.h"

namespace hetermoe {
namespace {

constexpr i64 kBudget = 10'000;         ///< of a search: that a plan has room is enough
constexpr double kEnoughGib = 1 << 20;  ///< of main memory
constexpr i64 kAdapterRank = 16;
constexpr i64 kMostDevices = 64;  ///< of a cluster
constexpr i64 kShortest = 512;    ///< tokens of a sequence
constexpr i64 kMostCopies = 8;    ///< of the cluster

/// Weights, and what the optimizer keeps of them, fill more than all devices and the hosts together: no plan
/// can fit.
bool is_beyond_all_memory(const PlanRequest& request) {
  const StateBytes each = state_bytes_of(request);
  const Bytes kept = each.weights + (request.trained.all() ? each.master + each.moments : 0);
  Bytes room = 0;
  for (const Device& device : request.cluster.devices)
    room += usable_memory(request.cluster.types[idx(device.type)]);
  for (const Node& node : request.cluster.nodes)
    room += request.limits.offload && node.host ? node.host->memory_bytes() : 0;
  return kept * real(count_parameters(request.model).total) > room;
}

class WaysOut {
 public:
  explicit WaysOut(const PlanRequest& request) : request_(checked(request)) {
    request_.limits.simulation_budget = kBudget;
  }

  std::vector<std::string> find() {
    limits();
    hosts();
    states();
    adapters();
    sequences();
    devices();
    return std::move(ways_);
  }

 private:
  std::optional<PlanResult> plan_of(const PlanRequest& request) const {
    if (is_beyond_all_memory(request)) return {};
    PlanResult result = find_plan(request);
    if (!result.feasible()) return {};
    return result;
  }
  void offer(const PlanRequest& request, const std::string& way) {
    if (plan_of(request)) ways_.push_back(way);
  }

  void limits() {
    PlanRequest next = request_;
    next.limits.shard_optimizer = true;
    if (!request_.limits.shard_optimizer) offer(next, "no --no-shard-optimizer");
    next = request_, next.limits.offload = true;
    if (!request_.limits.offload && has_hosts(request_.cluster)) offer(next, "no --no-offload");
    next = request_, next.limits.max_microbatches = request_.sequences;
    if (request_.limits.max_microbatches < request_.sequences) offer(next, "no --max-microbatches");
  }

  void hosts() {
    if (!request_.limits.offload) return;
    PlanRequest next = request_;
    for (Node& node : next.cluster.nodes) {
      if (!node.host) node.host.emplace();
      node.host->memory_gib = kEnoughGib;
    }
    const std::optional<PlanResult> result = plan_of(next);
    if (!result) return;
    const std::vector<Bytes> memory =
        estimate_host_memory(result->best().plan, next.model, next.cluster, next.trained);
    ways_.push_back(fmt::format("{:.0f} GiB of main memory a node (host: in the cluster file)",
                                std::ceil(*std::max_element(memory.begin(), memory.end()) / kGiB)));
  }

  void states() {
    PlanRequest next = request_;
    const std::vector<DeviceType>& types = request_.cluster.types;
    const bool bf16 =
        std::all_of(types.begin(), types.end(), [](auto& type) { return type.bf16_tflops > 0; });
    if (bf16 && request_.master == Master::kFp32 && request_.trained.all()) {
      next.dtype = Dtype::kBf16, next.master = Master::kNone, next.moments_dtype = Dtype::kBf16;
      offer(next, "--dtype bf16 --master none --moments-dtype bf16");
    }
    next = request_;
    if (request_.grad_dtype || bytes_of(request_.dtype) != 2) return;
    next.grad_dtype = request_.dtype;
    offer(next, fmt::format("--grad-dtype {}", name_of(request_.dtype)));
  }

  void adapters() {
    if (!request_.trained.all()) return;
    std::vector<std::string> targets;
    for (const ParamInfo& parameter : parameters(request_.model)) {
      const bool attention = parameter.name.find(".self_attn.") != std::string::npos;
      if (can_have_adapter(parameter) && (attention || parameter.expert >= 0))
        targets.push_back(parameter.name);
    }
    PlanRequest next = request_;
    const Lora lora = make_lora(request_.model, kAdapterRank, kAdapterRank, std::move(targets));
    next.trained = {units_without(request_.model, lora), std::make_shared<const Lora>(lora)};
    offer(next, fmt::format("adapters alone (--lora-rank {})", kAdapterRank));
  }

  void sequences() {
    PlanRequest next = request_;
    for (i64 length = request_.seq_len / 2; length >= kShortest; length /= 2) {
      next.seq_len = length;
      if (!plan_of(next)) continue;
      ways_.push_back(fmt::format("sequences of {} tokens", length));
      return;
    }
  }

  /// More nodes like those that are there.
  void devices() {
    PlanRequest next = request_;
    for (i64 copies = 2; copies <= kMostCopies; copies *= 2) {
      next.cluster = repeated(request_.cluster, copies);
      if (!plan_of(next)) continue;
      ways_.push_back(fmt::format("{} times as many devices", copies));
      return;
    }
  }

  static Cluster repeated(const Cluster& cluster, i64 copies) {
    Cluster out = cluster;
    for (i64 copy = 1; copy < copies; ++copy) {
      const auto first = static_cast<NodeId>(out.nodes.size());
      for (Node node : cluster.nodes) {
        node.name += fmt::format(" again {}", copy);
        // A single node may have no network.
        if (node.network <= 0) node.network = node.local;
        out.nodes.push_back(std::move(node));
      }
      for (Device device : cluster.devices) {
        device.node += first;
        out.devices.push_back(device);
      }
    }
    return out;
  }

  PlanRequest request_;
  std::vector<std::string> ways_;
};

}  // namespace

std::vector<std::string> ways_out(const PlanRequest& request) {
  if (request.cluster.num_devices() > kMostDevices) return {};
  return WaysOut(request).find();
}

std::string ways_out_text(const PlanRequest& request) {
  if (request.cluster.num_devices() > kMostDevices) return "";
  const std::vector<std::string> ways = ways_out(request);
  if (ways.empty())
    return "None of these alone makes room: main memory, smaller states, adapters, shorter sequences, more "
           "devices";
  return fmt::format("Each of these alone makes room: {}", fmt::join(ways, "; "));
}

}  // namespace hetermoe
