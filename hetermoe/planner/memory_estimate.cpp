#include "hetermoe/planner/memory_estimate.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/plan/backward_shares.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

/// On how many devices of all groups each part of the model is, where the optimizer is sharded over them.
struct Replicas {
  double embed = 1, head = 1;
  std::vector<double> attention;             // [layer]
  std::vector<std::vector<double>> experts;  // [layer][expert]
};

double num_listed(const Shares& shares) {
  std::set<DeviceId> devices;
  add_devices(shares, devices);
  return real(devices.size());
}

Replicas replicas_of(const Plan& plan, const std::vector<i64>& times) {
  Replicas all;
  const std::size_t layers = plan.groups[0].layers.size();
  all.attention.assign(layers, plan.shard_optimizer ? 0 : 1);
  all.experts.resize(layers);
  for (std::size_t l = 0; l < layers; ++l)
    all.experts[l].assign(plan.groups[0].layers[l].experts.size(), plan.shard_optimizer ? 0 : 1);
  if (!plan.shard_optimizer) return all;
  all.embed = all.head = 0;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = plan.groups[g];
    const double groups = times.empty() ? 1 : real(times[g]);
    all.embed += groups * num_listed(group.embed);
    all.head += groups * num_listed(group.head);
    for (std::size_t l = 0; l < layers; ++l) {
      all.attention[l] += groups * num_listed(group.layers[l].attention);
      for (std::size_t e = 0; e < all.experts[l].size(); ++e)
        all.experts[l][e] += groups * real(group.layers[l].experts[e].size());
    }
  }
  return all;
}

/// Adds up one group of a plan, stage by stage.
class GroupMemory {
 public:
  GroupMemory(const Plan& plan, const Group& group, const ModelConfig& model, const Replicas& replicas,
              const TrainedShares& trained)
      : plan_(plan),
        group_(group),
        model_(model),
        replicas_(replicas),
        trained_(trained),
        in_flight_(traits_of(plan.order).in_flight(plan, group)),
        counts_(count_parameters(model)),
        use_(plan.dtype.size()),
        most_(plan.dtype.size(), -1),
        share_(plan.dtype.size(), 0),
        owned_(plan.dtype.size(), 0) {
    for (std::size_t d = 0; d < use_.size(); ++d) {
      use_[d].element = bytes_of(plan.dtype[d]);
      use_[d].state = state_bytes_of(plan, static_cast<DeviceId>(d));
    }
  }

  void add_to(std::vector<Bytes>& memory) {
    for_sources({&group_.embed, &backward_embed_shares(group_)}, [&](Use& use, DeviceId, double) {
      const StateBytes each = trained_.of(use.state, UnitPart::kEmbed, -1);
      use.add(counts_.embedding, replicas_.embed, home_of(group_, UnitPart::kEmbed, -1), each);
      if (!is_gathered(UnitPart::kEmbed, -1))
        use.reduces(real(counts_.embedding), holders(group_.embed), each);
    });
    for (std::size_t l = 0; l < group_.layers.size(); ++l) add_layer(l);
    for_sources({&group_.head}, [&](Use& use, DeviceId device, double tokens) {
      const StateBytes each = trained_.of(use.state, UnitPart::kHead, -1);
      use.add(counts_.head, replicas_.head, home_of(group_, UnitPart::kHead, -1), each);
      if (!is_gathered(UnitPart::kHead, -1)) use.reduces(real(counts_.head), holders(group_.head), each);
      use.add(use.attention, head_memory(model_, tokens, use.element),
              real(in_flight_(group_.layers.size(), device)), in_wave());
    });
    for (const DeviceId device : group_.devices) {
      const Use& use = use_[idx(device)];
      const OpMemory ops = both(use.attention, use.experts);
      memory[idx(device)] +=
          use.sum + use.gathered + use.guests + use.attention_visits.at_once(plan_.slots.attention) +
          use.experts_visits.at_once(plan_.slots.experts) +
          (in_stages() ? stage_memory(ops, use.of_window, std::max(use.reduction, use.messages), in_wave(),
                                      use.resends)
                       : ops.saved + ops.largest + use.messages);
    }
  }

 private:
  /// Of one device.
  struct Use {
    Bytes element = 2;  ///< of a number
    StateBytes state;   ///< of a parameter that is trained
    /// Weights of an embedding or a head that are on the host or gathered are here all the same: a visit
    /// lasts a step.
    void add(i64 parameters, double replicas, const Home& home, const StateBytes& each) {
      if (is_gathered(home, replicas)) {
        sum += real(parameters) * (each.total() / replicas + each.weights_and_gradients());
        messages = std::max(messages, gathered_end_messages(real(parameters), replicas, each));
        return;
      }
      const bool updates = home.optimizer != Residence::kHost;
      sum += real(parameters) * (updates ? each.total(replicas) : each.weights_and_gradients());
    }
    static bool is_gathered(const Home& home, double replicas) {
      return home.weights == Residence::kSharded && replicas > 1;
    }
    HostVisits attention_visits, experts_visits;
    Bytes gathered = 0;  ///< of all its visits, where they are gathered
    Bytes messages = 0;  ///< of a gathered embedding or head
    Bytes guests = 0;    ///< experts of other owners and their gradients
    void reduces(double parameters, double holders, const StateBytes& each) {
      reduction = std::max(reduction, reduction_bytes(parameters, holders, each.gradients));
    }
    void add(OpMemory& ops, OpMemory op, double in_flight, double window) {
      of_window += window * op.saved;
      op.saved *= in_flight;
      ops.add_layers(op, 1);
    }
    Bytes sum = 0;                       ///< states
    OpMemory attention, experts;         ///< `saved` of all microbatches in flight; the head with attention
    Bytes of_window = 0, reduction = 0;  ///< as in stage_memory(), as the next
    bool resends = false;
  };

  void add_layer(std::size_t l) {
    const auto layer = static_cast<i64>(l);
    for_sources({&group_.layers[l].attention, &backward_shares(group_.layers[l])},
                [&](Use& use, DeviceId device, double tokens) {
                  add_attention(l, use);
                  use.resends = use.resends || recompute(l) == Recompute::kResend;
                  OpMemory op =
                      attention_memory(plan_, recompute(l), model_, layer, tokens, use.element, in_stages());
                  const double waiting = real(in_flight_(l, device));
                  if (waits_on_host(l))
                    op =
                        wait_on_host(op, tokens * row_bytes(model_, use.element), waiting, plan_.slots.saved);
                  use.add(use.attention, op, waiting, in_wave());
                });
    add_experts(l);
  }

  /// Parameters of the attention part of a layer.
  void add_attention(std::size_t l, Use& use) const {
    const Home home = home_of(group_, UnitPart::kAttention, static_cast<i32>(l));
    const double replicas = replicas_.attention[l], count = real(counts_.attention_part[l]);
    const StateBytes each = trained_.of(use.state, UnitPart::kAttention, static_cast<i64>(l));
    if (home.weights == Residence::kHost) {
      use.attention_visits.add(count * each.weights_and_gradients());
    } else if (Use::is_gathered(home, replicas)) {
      use.sum += count * each.total() / replicas;
      use.gathered =
          std::max(use.gathered, gathered_layer_bytes(count, replicas, plan_.slots.attention, each));
    } else {
      use.add(counts_.attention_part[l], replicas, home, each);
    }
    if (home.weights != Residence::kSharded) use.reduces(count, holders(group_.layers[l].attention), each);
  }

  void add_experts(std::size_t layer) {
    const LayerOwners& experts = group_.layers[layer].experts;
    const Home home = home_of(group_, UnitPart::kExperts, static_cast<i32>(layer));
    const bool visits = home.weights == Residence::kHost;
    std::vector<Bytes> visit(visits ? use_.size() : 0, 0);
    for (std::size_t e = 0; e < experts.size(); ++e) {
      for (const ExpertOwner& owner : experts[e]) {
        Use& use = use_[idx(owner.device)];
        const StateBytes each = trained_.of(use.state, UnitPart::kExperts, static_cast<i64>(layer));
        if (visits)
          visit[idx(owner.device)] += real(counts_.expert) * each.weights_and_gradients();
        else
          use.add(counts_.expert, replicas_.experts[layer][e], home, each);
        share_[idx(owner.device)] += owner.share;
        owned_[idx(owner.device)] += 1;
      }
    }
    add_guests(layer);
    for (const DeviceId device : group_.devices) {
      Use& use = use_[idx(device)];
      double share = std::exchange(share_[idx(device)], 0);
      const double owned = std::exchange(owned_[idx(device)], 0);
      if (visits && visit[idx(device)] > 0) use.experts_visits.add(visit[idx(device)]);
      if (share <= 0) continue;
      // Whoever computes a microbatch then computes all of its experts.
      if (group_.layers[layer].experts_at == ExpertsAt::kSources) share = real(model_.num_experts);
      const double waiting = real(in_flight_(layer, device));
      const double copies =
          real(model_.top_k) * share / real(model_.num_experts) * real(largest_microbatch() * plan_.seq_len);
      const StateBytes each = trained_.of(use.state, UnitPart::kExperts, static_cast<i64>(layer));
      use.reduces(share * real(counts_.expert), real(plan_.groups.size()), each);
      OpMemory op = experts_memory(plan_, recompute(layer), model_, copies, use.element);
      // Matrices as their adapters change them, and their gradients, are made for each op.
      if (trained_.adapts() && each.gradients > 0)
        op.largest += owned * real(counts_.expert) * use.state.weights_and_gradients();
      // Where a device also computes attention, what is left waits for the dispatch of the whole window.
      if (plan_.weight_gradients == WeightGradients::kAfter)
        op.largest +=
            waiting * copies * (expert_left_bytes(model_, use.element) + row_bytes(model_, use.element));
      if (waits_on_host(layer)) op = wait_on_host(op, op.saved, waiting, plan_.slots.saved);
      use.add(use.experts, op, waiting, in_wave());
    }
  }

  /// Guests of as many exchanges as may be there, and gradients of those of two: one set is on its way home.
  void add_guests(std::size_t layer) {
    if (plan_.guest_slots == 0 || group_.layers[layer].experts_at == ExpertsAt::kSources) return;
    const auto exchanges = static_cast<i64>(group_.microbatches.size());
    for (const DeviceId device : group_.devices) {
      Use& use = use_[idx(device)];
      if (share_[idx(device)] <= 0) continue;
      const double weights =
          real(std::min(plan_.guest_depth, exchanges * static_cast<i64>(group_.layers.size())));
      use.guests = real(plan_.guest_slots * counts_.expert) *
                   (weights * use.state.weights + real(std::min<i64>(2, exchanges)) * use.state.gradients);
    }
  }

  bool waits_on_host(std::size_t layer) const { return group_.layers[layer].saved == Residence::kHost; }

  /// Calls add(use, device, tokens of the fullest microbatch) for every device that some of the shares list.
  template <class Add>
  void for_sources(std::initializer_list<const Shares*> all, Add add) {
    for (const Shares* shares : all) {
      for (const ShareRow& row : *shares) {
        for (const Share& share : row) {
          i64& most = most_[idx(share.device)];
          most = std::max(most, share.sequences);
        }
      }
    }
    for (const DeviceId device : group_.devices) {
      const auto d = idx(device);
      const i64 most = std::exchange(most_[d], -1);
      if (most >= 0) add(use_[d], device, real(most * plan_.seq_len));
    }
  }

  bool is_gathered(UnitPart part, i32 layer) const {
    return home_of(group_, part, layer).weights == Residence::kSharded;
  }
  Recompute recompute(std::size_t layer) const {
    return group_.layers[layer].recompute.value_or(plan_.recompute);
  }
  /// A pipeline whose stages are several devices. Of one with a device for each stage the bound is that of
  /// other orders, which does not know what sums of gradients take.
  bool in_stages() const {
    return plan_.order == OrderPolicy::kOneFOneB &&
           std::any_of(group_.layers.begin(), group_.layers.end(),
                       [](const LayerPlacement& layer) { return share_row(layer.attention, 0).size() > 1; });
  }
  /// Of what these shares say in all groups of equal pipelines; elsewhere it is not asked.
  double holders(const Shares& shares) const {
    return plan_.order == OrderPolicy::kOneFOneB ? real(plan_.groups.size()) * num_listed(shares) : 1;
  }
  i64 largest_microbatch() const {
    return *std::max_element(group_.microbatches.begin(), group_.microbatches.end());
  }
  /// Microbatches that go through a stage of a pipeline together.
  double in_wave() const {
    return real(std::min(static_cast<i64>(group_.microbatches.size()), std::max(i64{1}, i64{plan_.window})));
  }

  const Plan& plan_;
  const Group& group_;
  const ModelConfig& model_;
  const Replicas& replicas_;
  const TrainedShares& trained_;
  InFlight in_flight_;
  ParamCounts counts_;
  std::vector<Use> use_;       // [device]
  std::vector<i64> most_;      // [device] scratch of for_sources(), -1 = not listed
  std::vector<double> share_;  // [device] scratch of add_experts()
  std::vector<double> owned_;  // [device] experts of a layer
};

ActivationOptions options_of(const Plan& figures, Recompute recompute, Bytes element) {
  return {element, kept_activations(recompute), false, figures.seq_len};
}

}  // namespace

void OpMemory::add_layers(const OpMemory& layer, double layers) {
  saved += layers * layer.saved;
  largest = std::max(largest, layer.largest);
  again = std::max(again, layer.again);
  exchanged = std::max(exchanged, layer.exchanged);
}

OpMemory wait_on_host(OpMemory op, Bytes saved, double in_flight, i32 slots) {
  if (op.saved <= 0) return op;
  op.saved -= saved;
  op.largest += (slots + in_flight) * saved;
  return op;
}

void HostVisits::add(Bytes visit, i64 times) {
  layers += times;
  largest = std::max(largest, visit);
}

OpMemory both(const OpMemory& attention, const OpMemory& experts) {
  return {attention.saved + experts.saved, std::max(attention.largest, experts.largest),
          attention.again + experts.again, attention.exchanged + experts.exchanged};
}

OpMemory attention_memory(const Plan& figures, Recompute recompute, const ModelConfig& model, i64 layer,
                          double tokens, Bytes element, bool shared) {
  const ActivationOptions options = options_of(figures, recompute, element);
  const double copies = model.is_moe(layer) ? real(model.top_k) : 0;
  const bool again = recomputes_apart(recompute, model.is_moe(layer));
  const bool leaves = figures.weight_gradients == WeightGradients::kAfter;
  const Bytes left = leaves ? attention_left_bytes(model, layer, element) : 0;
  const Bytes work = tokens * (attention_work_bytes(model, layer, options) + left);
  OpMemory out;
  out.saved = tokens * attention_saved_bytes(model, layer, options);
  // Rows sent and returned, and the gradients of both.
  out.exchanged = tokens * (2 + 2 * copies) * row_bytes(model, element);
  // Gradients inside attention are there when what its exchanges carry has come or has not gone yet.
  const Bytes gradients = tokens * attention_gradient_bytes(model, element) +
                          real(layer_weights(model, layer).attention_part()) * element;
  const bool counts = shared && figures.order == OrderPolicy::kOneFOneB;
  out.largest = work + (counts ? std::max(out.exchanged, gradients) : out.exchanged);
  out.again = again ? work : 0;
  return out;
}

OpMemory experts_memory(const Plan& figures, Recompute recompute, const ModelConfig& model, double copies,
                        Bytes element) {
  OpMemory out;
  out.saved = copies * expert_saved_bytes(model, options_of(figures, recompute, element));
  out.exchanged = copies * 3 * row_bytes(model, element);
  out.largest = copies / figures.chunks * (expert_work_bytes(model, element) * 1.5) + out.exchanged;
  const ActivationOptions inputs{.element = element};
  // Rows are dropped after forward; those of one layer come again.
  if (recompute == Recompute::kSelect) out.again = copies * expert_saved_bytes(model, inputs);
  if (recompute == Recompute::kAhead) out.again = copies * expert_kept_bytes(model, element);
  if (recompute != Recompute::kResend || figures.order != OrderPolicy::kOneFOneB) return out;
  out.again = out.saved + copies * expert_kept_bytes(model, element);
  out.saved = 0;
  return out;
}

OpMemory head_memory(const ModelConfig& model, double tokens, Bytes element) {
  OpMemory out;
  out.saved = tokens * row_bytes(model, element);
  out.largest = tokens * head_work_bytes(model, element);
  return out;
}

/// A copy of the own gradients, and from each peer the part that is added here.
Bytes reduction_bytes(double parameters, double holders, Bytes gradient) {
  return holders > 1 ? (2 - 1 / holders) * parameters * gradient : 0;
}

Bytes gathered_layer_bytes(double parameters, double holders, double visits, const StateBytes& each) {
  return parameters * each.weights_and_gradients() * (visits + 1 - 1 / holders);
}

Bytes gathered_end_messages(double parameters, double holders, const StateBytes& each) {
  return parameters * std::max(each.weights, each.gradients) * (1 - 1 / holders);
}

Bytes stage_memory(const OpMemory& ops, Bytes of_window, Bytes reduction, double window, bool resends) {
  const double others = window - (resends ? 0 : 1);
  return std::max(ops.saved, of_window + reduction) + ops.largest + window * ops.again +
         others * ops.exchanged;
}

std::vector<Bytes> estimate_memory(const Plan& plan, const ModelConfig& model, const std::vector<i64>& times,
                                   const TrainedShares& trained) {
  std::vector<Bytes> memory(plan.dtype.size(), 0);
  const Replicas replicas = replicas_of(plan, times);
  for (const Group& group : plan.groups) GroupMemory(plan, group, model, replicas, trained).add_to(memory);
  return memory;
}

Bytes usable_memory(const DeviceType& type) {
  return kUsableMemory * std::max(0.0, type.memory_bytes() - kReservedMemory);
}

std::string overfilled_device(const std::vector<Bytes>& memory, const Cluster& cluster) {
  DeviceId worst = -1;
  double excess = 1;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const double filled = memory[idx(d)] / usable_memory(cluster.type_of(d));
    if (filled > excess) worst = d, excess = filled;
  }
  if (worst < 0) return "";
  return fmt::format("device {} ({:.0f} GiB, {:.1f} usable) needs {:.1f} GiB", cluster.device_name(worst),
                     cluster.type_of(worst).memory_gib, usable_memory(cluster.type_of(worst)) / kGiB,
                     memory[idx(worst)] / kGiB);
}

}  // namespace hetermoe
