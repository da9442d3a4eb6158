#include "hetermoe/planner/words/ways_out.h"

#include <algorithm>
#include <cmath>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/any_plan.h"
#include "hetermoe/planner/estimate/host_use.h"
#include "hetermoe/planner/request_check.h"

namespace hetermoe {
namespace {

constexpr i64 kBudget = 10'000;    ///< of a search: that a plan has room is enough
constexpr double kMostGib = 4096;  ///< of main memory that a node may have
constexpr i64 kAdapterRank = 16;
constexpr i64 kMostShortDevices = 64;  ///< of a cluster
constexpr i64 kShortest = 512;         ///< tokens of a sequence
constexpr i64 kMostCopies = 8;         ///< of the cluster

class WaysOut {
 public:
  explicit WaysOut(const PlanRequest& request) : request_(checked(request)) {
    request_.limits.simulation_budget = kBudget;
    request_.limits.weigh_newer = false;
  }

  std::vector<std::string> find() {
    const std::optional<PlanRequest> narrow = with_narrow_states(), adapters = with_adapters();
    limits();
    hosts(request_);
    if (narrow) offer(*narrow, kNarrow);
    gradients();
    if (adapters) offer(*adapters, kAdapters);
    sequences();
    devices(request_);
    if (!ways_.empty()) return std::move(ways_);
    if (narrow) hosts(*narrow, kNarrow), devices(*narrow, kNarrow);
    if (adapters) hosts(*adapters, kAdapters), devices(*adapters, kAdapters);
    return std::move(ways_);
  }

 private:
  static constexpr const char* kNarrow = "--dtype bf16 --master none --moments-dtype bf16";
  static constexpr const char* kAdapters = "adapters alone (--lora-rank 16)";

  bool offer(const PlanRequest& request, const std::string& way) {
    const bool works = find_any_plan(request).has_value();
    if (works) ways_.push_back(way);
    return works;
  }

  void limits() {
    PlanRequest next = request_;
    next.limits.shard_optimizer = true;
    if (!request_.limits.shard_optimizer) offer(next, "no --no-shard-optimizer");
    next = request_, next.limits.offload = true;
    if (!request_.limits.offload && has_hosts(request_.cluster)) offer(next, "no --no-offload");
    next = request_, next.limits.max_microbatches = request_.sequences;
    if (request_.limits.max_microbatches < request_.sequences) offer(next, "no --max-microbatches");
    next = request_, next.limits.memory_reserve = 0;
    if (request_.limits.memory_reserve > 0)
      offer(next, fmt::format("no --memory-reserve ({} of each device now)",
                              memory_text(request_.limits.memory_reserve)));
    next = request_, next.limits.idle.clear();
    if (!request_.limits.idle.empty()) offer(next, "no --idle");
  }

  /// also: what the request differs in already.
  void hosts(PlanRequest next, const std::string& also = "") {
    if (!request_.limits.offload) return;
    for (Node& node : next.cluster.nodes) {
      if (!node.host) node.host.emplace();
      node.host->memory_gib = std::max(node.host->memory_gib, kMostGib);
    }
    const std::optional<Plan> plan = find_any_plan(next);
    if (!plan) return;
    const std::vector<Bytes> memory = estimate_host_memory(*plan, next.model, next.cluster, next.trained);
    const auto [least, most] = std::minmax_element(memory.begin(), memory.end());
    const double least_gib = std::ceil(*least / kGiB), most_gib = std::ceil(*most / kGiB);
    const std::string which =
        least_gib == most_gib ? ""
                              : fmt::format("; node {} needs most, others from {:.0f} GiB on",
                                            next.cluster.nodes[idx(most - memory.begin())].name, least_gib);
    ways_.push_back(joined(
        also, fmt::format(
                  "{0:.0f} GiB of main memory a node (in the cluster file: host: {{memory_gib: {0:.0f}}}{1})",
                  most_gib, which)));
  }

  static std::string joined(const std::string& also, const std::string& way) {
    return also.empty() ? way : fmt::format("{} and {}", also, way);
  }

  std::optional<PlanRequest> with_narrow_states() const {
    const std::vector<DeviceType>& types = request_.cluster.types;
    const bool bf16 =
        std::all_of(types.begin(), types.end(), [](auto& type) { return type.bf16_tflops > 0; });
    if (!bf16 || request_.master != Master::kFp32 || !request_.trained.all()) return {};
    PlanRequest next = request_;
    next.dtype = Dtype::kBf16, next.master = Master::kNone, next.moments_dtype = Dtype::kBf16;
    return next;
  }

  void gradients() {
    if (request_.grad_dtype || bytes_of(request_.dtype) != 2) return;
    PlanRequest next = request_;
    next.grad_dtype = request_.dtype;
    offer(next, fmt::format("--grad-dtype {}", name_of(request_.dtype)));
  }

  std::optional<PlanRequest> with_adapters() const {
    if (!request_.trained.all()) return {};
    std::vector<std::string> targets;
    for (const ParamInfo& parameter : parameters(request_.model)) {
      const bool attention = parameter.name.find(".self_attn.") != std::string::npos;
      if (can_have_adapter(parameter) && (attention || parameter.expert >= 0))
        targets.push_back(parameter.name);
    }
    PlanRequest next = request_;
    const Lora lora = make_lora(request_.model, kAdapterRank, kAdapterRank, std::move(targets));
    next.trained = {units_without(request_.model, lora), std::make_shared<const Lora>(lora)};
    return next;
  }

  void sequences() {
    PlanRequest next = request_;
    for (next.seq_len /= 2; next.seq_len >= kShortest; next.seq_len /= 2)
      if (offer(next, fmt::format("sequences of {} tokens", next.seq_len))) return;
  }

  /// More nodes like those that are there.
  void devices(PlanRequest next, const std::string& also = "") {
    const Cluster once = next.cluster;
    for (i64 copies = 2; copies <= kMostCopies; copies *= 2) {
      next.cluster = repeated(once, copies);
      if (offer(next, joined(also, fmt::format("{} times as many devices", copies)))) return;
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

std::optional<std::vector<std::string>> ways_out(const PlanRequest& request) {
  if (request.cluster.num_devices() > kMostShortDevices) return {};
  return WaysOut(request).find();
}

}  // namespace hetermoe
