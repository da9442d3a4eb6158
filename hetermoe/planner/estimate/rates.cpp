#include "hetermoe/planner/estimate/rates.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/planner/estimate/host_use.h"

namespace hetermoe {
namespace {

constexpr std::size_t kMostClasses = 8;  ///< classes are merged until there are no more, types permitting
constexpr double kSpeedTolerance = 0.02, kLargestTolerance = 0.9;
constexpr double kLinkTolerance = 0.1;  ///< of links that count as equal in any case

/// What costs tell devices apart by.
struct Traits {
  i32 type = 0;
  double speed = 1;
  BytesPerSecond network = 0, local = 0;
  NodeId node = 0;  ///< where it matters

  auto operator<=>(const Traits&) const = default;
};

/// What stands for each: the largest one not more than `tolerance` above it.
std::map<double, double> merged(const std::set<double, std::greater<>>& values, double tolerance) {
  std::map<double, double> out;
  double largest = 0;
  for (const double value : values) {
    if (out.empty() || value < (1 - tolerance) * largest) largest = value;
    out[value] = largest;
  }
  return out;
}

std::vector<Traits> merged_traits(const Cluster& cluster, double of_speeds, double of_links) {
  std::map<i32, std::set<double, std::greater<>>> speeds;
  std::set<double, std::greater<>> networks, locals;
  for (const Device& device : cluster.devices) {
    speeds[device.type].insert(device.speed);
    networks.insert(cluster.nodes[idx(device.node)].network);
    locals.insert(cluster.nodes[idx(device.node)].local);
  }
  std::map<i32, std::map<double, double>> speed;
  for (const auto& [type, of_type] : speeds) speed[type] = merged(of_type, of_speeds);
  const std::map<double, double> network = merged(networks, of_links), local = merged(locals, of_links);
  // In a small cluster it matters which node a device is on; in a large one it would make too many classes.
  const bool small = cluster.num_devices() <= kSmallCluster;
  std::vector<Traits> traits;
  for (const Device& device : cluster.devices) {
    const Node& node = cluster.nodes[idx(device.node)];
    traits.push_back({device.type, speed[device.type][device.speed], network.at(node.network),
                      local.at(node.local), small ? device.node : 0});
  }
  return traits;
}

/// [device] traits of its class. Many measured figures would make too many classes to search.
std::vector<Traits> class_traits(const Cluster& cluster) {
  double of_speeds = 0, of_links = kLinkTolerance;
  for (;;) {
    std::vector<Traits> traits = merged_traits(cluster, of_speeds, of_links);
    const std::set<Traits> different(traits.begin(), traits.end());
    if (different.size() <= kMostClasses || of_speeds > kLargestTolerance) return traits;
    of_speeds = std::max(kSpeedTolerance, 1.25 * of_speeds);
    of_links = std::min(kLargestTolerance, 1.25 * of_links);
  }
}

}  // namespace

StateExchange state_exchange(const DeviceClass& cls, Bytes bytes, double holders, double on_node) {
  if (holders <= 1) return {};
  on_node = std::clamp(on_node, 1.0, holders);
  const StateExchange at_once = {on_node * bytes * (holders - on_node) / holders,
                                 bytes * (on_node - 1) / holders / cls.local};
  if (on_node == 1 || on_node == holders) return at_once;
  // The node with fewest holders has to get most.
  const double rest = std::fmod(holders, on_node), fewest = rest > 0 ? std::max(1.0, rest) : on_node;
  const StateExchange levels = {bytes * (holders - fewest) / holders,
                                bytes * (on_node - 1) / on_node / cls.local};
  const bool pays =
      levels.inside + levels.port / cls.port < std::max(at_once.inside, at_once.port / cls.port);
  return pays ? levels : at_once;
}

Seconds peer_seconds(const DeviceClass& cls, double devices, double on_node) {
  on_node = std::clamp(on_node, 1.0, std::max(1.0, devices));
  return cls.local_peer * (on_node - 1) + cls.peer * (devices - on_node);
}

double backward_exchanges(Recompute recompute) {
  if (recompute == Recompute::kSelect) return 1.5;  // a dispatch alone
  return recompute == Recompute::kResend ? 2 : 1;
}

Plan blank_plan(const PlanRequest& request, Recompute recompute) {
  Plan plan;
  plan.model = request.model.name;
  plan.seq_len = request.seq_len;
  plan.dtype.assign(request.cluster.devices.size(), request.dtype);
  plan.wire_forward = plan.wire_backward = request.wire.value_or(wire_of(request.dtype));
  plan.recompute = recompute;
  plan.master = request.master, plan.moments_dtype = request.moments_dtype;
  plan.grad_dtype = request.grad_dtype, plan.wire_reduce = request.wire_reduce;
  return plan;
}

namespace {

std::unique_ptr<CostModel> make_rates_cost(const PlanRequest& request, Recompute recompute) {
  return make_cost(request.model, request.cluster, blank_plan(request, recompute),
                   load_profiles(request.cluster), request.software);
}

}  // namespace

Rates::Rates(const PlanRequest& request)
    : request_(request),
      counts_(count_parameters(request.model)),
      trained_(request.trained, request.model),
      kept_(make_rates_cost(request, Recompute::kOff)),
      recomputed_(make_rates_cost(request, Recompute::kLocal)),
      selected_(make_rates_cost(request, Recompute::kSelect)) {
  attention_parameters_ = real(counts_.embedding + counts_.head);
  for (const i64 part : counts_.attention_part) attention_parameters_ += real(part);
  for (i32 l = 0; l < request.model.num_layers; ++l)
    (request.model.is_moe(l) ? moe_layer_ : dense_layer_) = l;
  moe_layers_ = real(request.model.num_moe_layers());
  moe_share_ = moe_layers_ / real(request.model.num_layers);
  make_classes();
  sort_classes();
}

void Rates::make_classes() {
  const Cluster& cluster = request_.cluster;
  const std::vector<Traits> traits = class_traits(cluster);
  std::map<Traits, std::size_t> index;
  std::vector<std::map<NodeId, i64>> on_node;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const Device& device = cluster.devices[idx(d)];
    const auto [at, is_new] = index.try_emplace(traits[idx(d)], classes_.size());
    if (is_new) {
      classes_.push_back({.type = device.type, .speed = traits[idx(d)].speed, .devices = {}});
      on_node.emplace_back();
    }
    DeviceClass& cls = classes_[at->second];
    const Node& node = cluster.nodes[idx(device.node)];
    const BytesPerSecond port = node.network * request_.software.network_efficiency;
    const BytesPerSecond local = node.local * request_.software.local_efficiency;
    cls.port = cls.devices.empty() ? port : std::min(cls.port, port);
    cls.local = cls.devices.empty() ? local : std::min(cls.local, local);
    cls.latency = std::max(cls.latency, node.latency);
    cls.peer = std::max(cls.peer, node.peer);
    cls.local_peer = std::max(cls.local_peer, node.local_peer);
    cls.devices.push_back(d);
    ++on_node[at->second][device.node];
  }
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    // The fastest device stands for the class, so that no bound is above what a device takes. Full nodes come
    // first: a part of the class then spans as few nodes as it can.
    std::stable_sort(classes_[c].devices.begin(), classes_[c].devices.end(), [&](DeviceId a, DeviceId b) {
      const Device &x = cluster.devices[idx(a)], &y = cluster.devices[idx(b)];
      if (x.speed != y.speed) return x.speed > y.speed;
      return std::pair(-on_node[c].at(x.node), x.node) < std::pair(-on_node[c].at(y.node), y.node);
    });
    i64 most = 0;
    for (const auto& [node, count] : on_node[c]) most = std::max(most, count);
    classes_[c].per_node = real(most);
    for (const auto& [node, count] : on_node[c]) classes_[c].on_full_nodes += count == most ? count : 0;
  }
}

bool Rates::on_one_node(const std::vector<i64>& first, const std::vector<i64>& count) const {
  std::set<NodeId> ends;
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    if (count[c] == 0) continue;
    for (const i64 i : {first[c], first[c] + count[c] - 1})
      ends.insert(request_.cluster.devices[idx(classes_[c].devices[idx(i)])].node);
  }
  return ends.size() <= 1;
}

/// The smaller the ratio of attention time to expert time, the earlier a class takes attention.
void Rates::sort_classes() {
  std::vector<std::pair<double, DeviceClass>> keyed;
  const double copies = real(request_.seq_len * request_.model.top_k);
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const double ratio = attention(c, 1, Recompute::kLocal).sum() /
                         std::max(1e-12, experts(c, copies, 1, Recompute::kLocal).sum());
    keyed.emplace_back(ratio, classes_[c]);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [](auto& a, auto& b) { return a.first < b.first; });
  for (std::size_t c = 0; c < classes_.size(); ++c) classes_[c] = std::move(keyed[c].second);
}

ComputeWork Rates::work(OpKind kind, std::size_t cls) const {
  ComputeWork work;
  work.op.kind = kind;
  work.op.phase = Phase::kForward;
  work.op.layer = moe_layer_;
  work.device = classes_[cls].devices.front();
  work.seq_len = request_.seq_len;
  return work;
}

const LayerCost& Rates::attention(std::size_t cls, double sequences, Recompute recompute) const {
  const auto [entry, fresh] = attention_[{cls, recompute}].try_emplace(sequences);
  if (fresh) entry->second = attention_cost(cls, sequences, recompute);
  return entry->second;
}

LayerCost Rates::attention_cost(std::size_t cls, double sequences, Recompute recompute) const {
  LayerCost sum;
  for (const bool dense : {false, true}) {
    const double share = dense ? 1 - moe_share_ : moe_share_;
    if (share <= 0) continue;
    const LayerCost of_kind = attention_of(cls, sequences, recompute, dense);
    sum.forward += share * of_kind.forward;
    sum.backward += share * of_kind.backward;
  }
  return sum;
}

LayerCost Rates::attention_of(std::size_t cls, double sequences, Recompute recompute, bool dense) const {
  ComputeWork w = work(OpKind::kAttention, cls);
  w.op.layer = dense ? dense_layer_ : moe_layer_;
  if (w.op.layer < 0) return {};
  w.tokens = sequences * real(request_.seq_len);
  w.frozen = trained_.mean(UnitPart::kAttention).frozen;
  LayerCost cost;
  cost.forward = this->cost(recompute).compute(w);
  w.op.phase = Phase::kBackward;
  cost.backward = this->cost(recompute).compute(w);
  if (recompute != Recompute::kSelect || dense) return cost;
  w.op.phase = Phase::kRecompute;
  cost.backward += this->cost(recompute).compute(w);
  return cost;
}

LayerCost Rates::experts(std::size_t cls, double copies, double experts, Recompute recompute) const {
  if (moe_layer_ < 0 || copies <= 0) return {};
  ComputeWork w = work(OpKind::kExperts, cls);
  w.frozen = trained_.mean(UnitPart::kExperts).frozen;
  w.copies = w.rows = copies;
  w.experts = experts;
  LayerCost sum;
  sum.forward = cost(recompute).compute(w);
  w.op.phase = Phase::kBackward;
  sum.backward = cost(recompute).compute(w);
  return sum;
}

Seconds Rates::head(std::size_t cls, double sequences) const {
  ComputeWork w = work(OpKind::kHead, cls);
  w.tokens = sequences * real(request_.seq_len);
  w.trains = true;
  w.frozen = trained_.mean(UnitPart::kHead).frozen;
  return kept_->compute(w);
}

double Rates::trained_attention() const {
  const double embed = real(counts_.embedding), head = real(counts_.head);
  return trained_of(UnitPart::kEmbed, embed) + trained_of(UnitPart::kHead, head) +
         trained_of(UnitPart::kAttention, attention_parameters_ - embed - head);
}

Seconds Rates::update(std::size_t cls, double parameters) const {
  ComputeWork w = work(OpKind::kUpdate, cls);
  w.params = parameters;
  return kept_->compute(w);
}

Seconds Rates::host_update(std::size_t cls, double parameters) const {
  ComputeWork w = work(OpKind::kUpdate, cls);
  w.device = request_.cluster.num_devices() + request_.cluster.node_of(w.device);
  w.params = parameters;
  return kept_->compute(w);
}

bool Rates::visits(UnitPart part) const {
  const HostUse use = request_.limits.host_use;
  if (use == HostUse::kAll || use == HostUse::kAllSaved)
    return part == UnitPart::kExperts || part == UnitPart::kAttention;
  return use == HostUse::kExperts && part == UnitPart::kExperts;
}

/// Weights that visit or are gathered take room in slots alone, of which a device has as many as it has;
/// experts and attention parts of the mean layer.
Bytes Rates::state_bytes(UnitPart part, double replicas) const {
  const StateBytes each = state_of(part);
  const bool is_gathered = request_.limits.gather_weights && part != UnitPart::kExperts && replicas > 1;
  const bool on_hosts = trained_.adapts() ? visits(part) : request_.limits.host_use != HostUse::kNone;
  if (!on_hosts && !is_gathered) return each.total(replicas);
  const bool is_expert = part == UnitPart::kExperts;
  const double layers = is_expert ? moe_layers_ : real(request_.model.num_layers);
  // What is gathered comes as messages first.
  const double messages = is_gathered ? 1 - 1 / replicas : 0;
  const double slots = is_expert ? VisitSlots().experts : VisitSlots().attention + messages;
  const Bytes whole = (visits(part) ? housed(part).visits : each).weights_and_gradients();
  const Bytes kept = is_gathered    ? each.total() / replicas
                     : visits(part) ? housed(part).stays.total(replicas)
                                    : 0;
  if (visits(part) || (is_gathered && part == UnitPart::kAttention))
    return kept + whole * std::min(1.0, slots / std::max(1.0, layers));
  return kept + whole + messages * each.gradients / 2;  // of embedding and head one at a time
}

void settle_homes(const PlanRequest& request, Plan& plan) {
  if (request.limits.gather_weights) shard_weights(plan);
  keep_on_hosts(request.limits.host_use, request.model, request.cluster, plan,
                request.trained.lora != nullptr);
}

double Rates::hit(double owned) const { return hit_chance(request_.model, owned); }

double Rates::saved_share(Recompute recompute, double layers, double in_flight) const {
  if (!saves_on_hosts(request_.limits.host_use) || keeps_activations(recompute)) return 1;
  return std::min(1.0, (VisitSlots().saved + in_flight) / std::max(1.0, layers * in_flight));
}

Bytes Rates::usable_memory(std::size_t cls) const {
  const DeviceType& type = request_.cluster.types[idx(classes_[cls].type)];
  return hetermoe::usable_memory(type) - request_.limits.memory_reserve;
}

}  // namespace hetermoe
