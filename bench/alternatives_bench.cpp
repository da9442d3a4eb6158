// What other ways to share a layer would bring: tensor parallelism and rings instead of the exchange of heads
// inside teams, tensor parallelism as others train by it, and slices of experts instead of whole ones.
// hetermoe trains by none of them. Everything printed here is simulated, in bf16. Usage: alternatives_bench
// [teams | tp | slices].
#include <iostream>
#include <map>
#include <optional>

#include "bench/document.h"
#include "hetermoe/base/index.h"
#include "hetermoe/placement/team.h"
#include "hetermoe/planner/planner.h"
#include "hetermoe/planner/strategies/compare.h"
#include "hetermoe/sim/simulator.h"

namespace hetermoe {
namespace {

/// Nodes of equal devices each.
struct Part {
  std::string types;  ///< "H100 x8"
  i64 nodes = 1;
  double local_gb_s = 0, network_gbit_s = 0;
};

Cluster cluster_of(const std::string& name, const std::vector<Part>& parts) {
  Json nodes = Json::array();
  for (std::size_t p = 0; p < parts.size(); ++p)
    nodes.push_back({{"name", fmt::format("part{}", p)},
                     {"count", parts[p].nodes},
                     {"devices", {parts[p].types}},
                     {"local_gb_s", parts[p].local_gb_s},
                     {"local_latency_us", 5},
                     {"network_gbit_s", parts[p].network_gbit_s}});
  return parse_cluster({{"name", name}, {"latency_us", 10}, {"nodes", nodes}}, "alternatives_bench");
}

PlanRequest request_of(const ModelConfig& model, const Cluster& cluster, i64 seq_len, i64 sequences) {
  PlanRequest request;
  request.model = model, request.cluster = cluster;
  request.seq_len = seq_len, request.sequences = sequences;
  request.dtype = Dtype::kBf16;
  return request;
}

// --- teams ---

/// How a team computes attention over one sequence.
enum class Exchange { kHeads, kTensor, kRing, kFree };

/// Prices the exchanges of equal teams as if they were of another kind. What devices compute stays, although
/// a ring gives the devices of a causal sequence unequal work.
class OtherExchange : public CostModel {
 public:
  OtherExchange(std::unique_ptr<CostModel> inner, const ModelConfig& model, const Cluster& cluster,
                const Placement& placement, Exchange exchange)
      : inner_(std::move(inner)),
        model_(model),
        cluster_(cluster),
        placement_(placement),
        exchange_(exchange) {}

  Seconds compute(const ComputeWork& work) const override { return inner_->compute(work); }
  double interference(DeviceId device) const override { return inner_->interference(device); }
  TransferCost transfer(const TransferWork& work) const override {
    const bool of_team = work.op.kind == OpKind::kToHeads || work.op.kind == OpKind::kToTokens;
    if (!of_team || exchange_ == Exchange::kHeads) return inner_->transfer(work);
    if (exchange_ == Exchange::kFree) return {};
    if (exchange_ == Exchange::kTensor) return scaled(work);
    return passed_on(work);
  }

 private:
  /// Rows of full width: all tokens are gathered before, and partial sums are scattered after.
  TransferCost scaled(const TransferWork& work) const {
    const Team team = placement_.team_of(work.op);
    const HeadRange heads = team.members[0].heads;
    const i64 width = work.op.kind == OpKind::kToHeads ? width_to_heads(model_, team, heads)
                                                       : width_to_tokens(model_, heads);
    std::vector<PortBytes> bytes(work.bytes.begin(), work.bytes.end());
    for (PortBytes& port : bytes) {
      for (Bytes* each : {&port.local_out, &port.local_in, &port.net_out, &port.net_in})
        *each *= real(model_.hidden) / real(width);
    }
    return inner_->transfer({work.op, work.participants, bytes});
  }

  /// Keys and values, or latents, of all others go from each device to the next. Backward they go once more,
  /// with their gradients; nothing is sent for recomputation apart.
  TransferCost passed_on(const TransferWork& work) const {
    if (work.op.kind == OpKind::kToTokens || work.op.phase == Phase::kRecompute) return {};
    const Team team = placement_.team_of(work.op);
    const i64 width = model_.attention == AttentionKind::kMla ? model_.kv_lora_rank + model_.qk_rope_dim
                                                              : model_.key_width() + model_.value_width();
    const Bytes each = 2.0 * real(team.tokens - team.members[0].tokens) * real(width) *
                       (work.op.phase == Phase::kBackward ? 2 : 1);
    std::vector<PortBytes> bytes(work.bytes.size());
    for (std::size_t i = 0; i < work.participants.size(); ++i) {
      const std::size_t next = (i + 1) % work.participants.size();
      const bool near = node_of(work.participants[i]) == node_of(work.participants[next]);
      (near ? bytes[i].local_out : bytes[i].net_out) = each;
      (near ? bytes[next].local_in : bytes[next].net_in) = each;
    }
    return inner_->transfer({work.op, work.participants, bytes});
  }
  NodeId node_of(DeviceId device) const { return cluster_.devices[idx(device)].node; }

  std::unique_ptr<CostModel> inner_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  const Placement& placement_;
  Exchange exchange_;
};

double tokens_per_s(const Plan& plan, const ModelConfig& model, const Cluster& cluster, Exchange exchange) {
  const Placement placement(plan, model, StepOptions{});
  const OtherExchange cost(make_cost(model, cluster, plan, {}), model, cluster, placement, exchange);
  const Seconds step =
      simulate(build_schedule(plan, model), placement, model, cluster, cost, ExpectedRouting(model)).step;
  return real(total_tokens(plan)) / step;
}

/// Devices of its teams, if all are equal; 0 = they are not, or there are none.
i64 equal_teams(const Plan& plan) {
  i64 size = 0;
  for (const Group& group : plan.groups) {
    for (const LayerPlacement& layer : group.layers) {
      for (const ShareRow& row : layer.attention) {
        for (const Team& team : teams_of(row, plan.seq_len, 0)) {
          const TeamMember& first = team.members[0];
          for (const TeamMember& member : team.members)
            if (member.tokens != first.tokens || member.heads.count != first.heads.count) return 0;
          const auto own = static_cast<i64>(team.members.size());
          if (size != 0 && own != size) return 0;
          size = own;
        }
      }
    }
  }
  return size;
}

const Candidate* with_equal_teams(const PlanResult& result) {
  for (const Candidate& candidate : result.tried) {
    if (candidate.infeasible.empty() && !candidate.plan.groups.empty() &&
        !candidate.plan.groups[0].layers.empty() && !candidate.extrapolated &&
        equal_teams(candidate.plan) > 1)
      return &candidate;
  }
  return nullptr;
}

void print_teams(Document& document) {
  const std::vector<Cluster> clusters = {
      cluster_of("8 H100", {{"H100 x8", 1, 450, 400}}),
      cluster_of("16 H100 in 2 nodes, 400 Gbit/s", {{"H100 x8", 2, 450, 400}}),
      cluster_of("8 A100-80 (PCIe, 25 GB/s)", {{"A100-80 x8", 1, 25, 100}}),
      cluster_of("4 RTX4090 in 2 nodes, 100 Gbit/s", {{"RTX4090 x2", 2, 25, 100}})};
  std::vector<Row> rows;
  for (const char* name : {"llama-3.1-8b", "qwen2.5-7b", "deepseek-v2-lite", "qwen3-30b-a3b", "d1"}) {
    for (const Cluster& cluster : clusters) {
      for (const auto& [seq_len, sequences] :
           std::vector<std::pair<i64, i64>>{{8192, 4}, {131072, 1}, {131072, 8}}) {
        ModelConfig model = load_model(name);
        model.max_positions = 0;  // as if it were trained for that
        const PlanResult result = find_plan(request_of(model, cluster, seq_len, sequences));
        const Candidate* found = with_equal_teams(result);
        const std::string what = fmt::format("{}, {}, {} x {}", name, cluster.name, sequences, seq_len);
        std::cerr << what << "\n";
        if (found == nullptr) continue;
        Plan whole = found->plan;
        whole.head_parts = 1;  // others price exchanges whole
        const auto speed = [&](Exchange exchange) { return tokens_per_s(whole, model, cluster, exchange); };
        const double heads = speed(Exchange::kHeads);
        const auto in_parts = [&](i32 parts) {
          Plan plan = whole;
          plan.head_parts = parts;
          return fmt::format("{:.2f}", tokens_per_s(plan, model, cluster, Exchange::kHeads) / heads);
        };
        const auto times = [&](Exchange exchange) { return fmt::format("{:.2f}", speed(exchange) / heads); };
        rows.push_back({what, std::to_string(equal_teams(found->plan)),
                        found == &result.best() ? "yes" : "no", fmt::format("{:.0f}", heads), in_parts(2),
                        in_parts(4), times(Exchange::kTensor), times(Exchange::kRing),
                        times(Exchange::kFree)});
      }
    }
  }
  document.table({"model, cluster, sequences of a step", "team", "fastest plan", "tokens/s by heads",
                  "in 2 parts", "in 4 parts", "tensor parallel", "ring", "free exchanges"},
                 rows);
}

// --- tensor parallelism as a whole ---

void print_tensor_parallel(Document& document) {
  const std::vector<Cluster> clusters = {
      cluster_of("8 H100", {{"H100 x8", 1, 450, 400}}),
      cluster_of("16 H100 in 2 nodes, 400 Gbit/s", {{"H100 x8", 2, 450, 400}}),
      cluster_of("8 A100-80 (PCIe, 25 GB/s)", {{"A100-80 x8", 1, 25, 100}}),
      cluster_of("8 A100-80 + 8 RTX4090", {{"A100-80 x8", 1, 300, 100}, {"RTX4090 x8", 1, 25, 100}}),
      cluster_of("4 A40 + 8 V100", {{"A40 x4", 1, 20, 100}, {"V100 x8", 1, 20, 100}})};
  std::vector<Row> rows;
  for (const char* name : {"llama-3.1-8b", "qwen3-30b-a3b", "olmoe-1b-7b", "d1"}) {
    for (const Cluster& cluster : clusters) {
      for (const i64 sequences : {16, 96}) {
        CompareOptions options;
        options.strategies = {"tp", "ep", "best"}, options.sequences = sequences;
        options.dtype = Dtype::kBf16;
        const std::vector<CompareRow> compared =
            compare_strategies(load_model(name), cluster, {4096}, options);
        Row row = {fmt::format("{}, {}, {} x 4096", name, cluster.name, sequences)};
        for (const CompareRow& each : compared) {
          const bool runs = each.infeasible.empty() && each.over_memory.empty();
          row.push_back(runs ? fmt::format("{:.0f}", each.tokens_per_s) : "-");
        }
        const CompareRow &tp = compared[0], &best = compared[2];
        row.push_back(tp.tokens_per_s > 0 && best.tokens_per_s > 0
                          ? fmt::format("{:.2f}", best.tokens_per_s / tp.tokens_per_s)
                          : "-");
        std::cerr << fmt::format("{}\n", fmt::join(row, " | "));
        rows.push_back(std::move(row));
      }
    }
  }
  document.table({"model, cluster, sequences of a step", "tp, tokens/s", "ep", "best", "best over tp"}, rows);
}

// --- slices of experts ---

/// The same experts, each cut into as many of a part of the width, which a token chooses together.
ModelConfig sliced(ModelConfig model, i64 slices) {
  model.num_experts *= slices, model.top_k *= slices, model.expert_hidden /= slices;
  return model;
}

/// Even choices of k of the whole experts. A device gets a row if it has some slice of a chosen one.
class SlicedRouting : public RoutingLoad {
 public:
  SlicedRouting(const ModelConfig& whole, i64 slices)
      : num_experts_(whole.num_experts), top_k_(whole.top_k), slices_(slices) {}

  ExchangeLoad exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                        i32 chunk) const override {
    const Plan& plan = placement.plan();
    ExchangeLoad load;
    for (const TokenRange range : placement.ranges(group, layer, microbatch)) {
      const auto [begin, end] = chunk_range(range.tokens(), chunk, plan.chunks);
      load.tokens.push_back(real(end - begin));
    }
    const std::vector<DeviceId>& owners = placement.owners(group, layer, microbatch, Phase::kForward);
    const LayerOwners& experts = plan.groups[idx(group)].layers[idx(layer)].experts;
    std::vector<std::map<i64, double>> held(owners.size());  // [owner] share of an expert's rows
    load.copies_per_token.assign(owners.size(), 0);
    for (std::size_t e = 0; e < experts.size(); ++e) {
      for (const ExpertOwner& owner : experts[e]) {
        const std::size_t at =
            idx(std::lower_bound(owners.begin(), owners.end(), owner.device) - owners.begin());
        double& share = held[at][static_cast<i64>(e) / slices_];
        share = std::max(share, owner.share);
        load.copies_per_token[at] += owner.share * real(top_k_) / real(num_experts_);
      }
    }
    for (const auto& of_owner : held) load.rows_per_token.push_back(chance_of_some(of_owner));
    if (plan.row_nodes.empty()) return load;
    const NodeRows nodes(plan, group, owners);
    for (const std::vector<std::size_t>& there : nodes.owners()) {
      std::map<i64, double> of_node;
      for (const std::size_t o : there)
        for (const auto& [expert, share] : held[o]) of_node[expert] = std::min(1.0, of_node[expert] + share);
      load.node_rows_per_token.push_back(chance_of_some(of_node));
    }
    return load;
  }

 private:
  /// That a token's row goes to who has these shares: 1 - e_k(1 - share) / C(E, k), where e_k is the
  /// elementary symmetric polynomial.
  double chance_of_some(const std::map<i64, double>& shares) const {
    std::vector<double> missed(idx(top_k_) + 1, 0), all = missed;
    missed[0] = all[0] = 1;
    for (i64 e = 0; e < num_experts_; ++e) {
      const auto share = shares.find(e);
      for (i64 k = top_k_; k > 0; --k) {
        missed[idx(k)] += missed[idx(k - 1)] * (share == shares.end() ? 1 : 1 - share->second);
        all[idx(k)] += all[idx(k - 1)];
      }
    }
    return 1 - missed[idx(top_k_)] / all[idx(top_k_)];
  }

  i64 num_experts_, top_k_, slices_;
};

void print_slices(Document& document) {
  const std::vector<Cluster> clusters = {
      load_cluster("o1"), cluster_of("4 A40 + 8 V100", {{"A40 x4", 1, 20, 100}, {"V100 x8", 1, 20, 100}}),
      cluster_of("8 A100-80 + 16 V100-32", {{"A100-80 x8", 1, 200, 100}, {"V100-32 x8", 2, 60, 100}}),
      cluster_of("8 A100-80 + 8 RTX4090", {{"A100-80 x8", 1, 300, 100}, {"RTX4090 x8", 1, 25, 100}})};
  std::vector<Row> rows;
  for (const char* name : {"mixtral2", "mixtral-8x7b", "gpt-oss-20b", "d1"}) {
    const ModelConfig whole = load_model(name);
    for (const Cluster& cluster : clusters) {
      for (const i64 sequences : {24, 96}) {
        Row row = {fmt::format("{}, {}, {} x 4096", name, cluster.name, sequences)};
        double first = 0;
        for (const i64 slices : {1, 2, 4}) {
          const ModelConfig model = sliced(whole, slices);
          PlanRequest request = request_of(model, cluster, 4096, sequences);
          request.routing.load = std::make_shared<SlicedRouting>(whole, slices);
          const PlanResult result = find_plan(request);
          const double speed = result.feasible() ? result.best().prediction.tokens_per_s : 0;
          if (slices == 1) first = speed, row.push_back(fmt::format("{:.0f}", speed));
          if (slices > 1)
            row.push_back(first > 0 ? fmt::format("{:.2f}", speed / first) : fmt::format("{:.0f}", speed));
        }
        std::cerr << fmt::format("{}\n", fmt::join(row, " | "));
        rows.push_back(std::move(row));
      }
    }
  }
  document.table({"model, cluster, sequences of a step", "tokens/s, whole experts", "2 slices", "4 slices"},
                 rows);
}

}  // namespace
}  // namespace hetermoe

int main(int argc, char** argv) {
  try {
    const std::string asked = argc > 1 ? argv[1] : "";
    hetermoe::Document document;
    const auto wants = [&](const char* table) { return asked.empty() || asked == table; };
    if (wants("teams")) hetermoe::print_teams(document);
    if (wants("tp")) hetermoe::print_tensor_parallel(document);
    if (wants("slices")) hetermoe::print_slices(document);
    std::cout << document.markdown();
    return 0;
  } catch (const hetermoe::Error& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
