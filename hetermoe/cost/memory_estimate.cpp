#include "hetermoe/cost/memory_estimate.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/cost_model.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/plan/backward_shares.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

/// On how many devices of all groups each part of the model is.
struct Replicas {
  double embed = 0, head = 0;
  std::vector<double> attention;             // [layer]
  std::vector<std::vector<double>> experts;  // [layer][expert]
};

double num_listed(std::initializer_list<const Shares*> all) {
  std::set<DeviceId> devices;
  for (const Shares* shares : all) add_devices(*shares, devices);
  return real(devices.size());
}

Replicas replicas_of(const Plan& plan, const ModelConfig& model, const std::vector<i64>& times) {
  Replicas all;
  const std::size_t layers = plan.groups[0].layers.size();
  all.attention.assign(layers, 0);
  all.experts.resize(layers);
  for (std::size_t l = 0; l < layers; ++l) all.experts[l].assign(plan.groups[0].layers[l].experts.size(), 0);
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = plan.groups[g];
    const double groups = times.empty() ? 1 : real(times[g]);
    // With tied embeddings the head's tensors belong to the embedding.
    const Shares& tied = model.tie_embeddings ? group.head : group.embed;
    all.embed += groups * num_listed({&group.embed, &tied});
    all.head += groups * num_listed({&group.head});
    for (std::size_t l = 0; l < layers; ++l) {
      all.attention[l] += groups * num_listed({&group.layers[l].attention});
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
              const TrainedShares& trained, double margin)
      : plan_(plan),
        group_(group),
        model_(model),
        replicas_(replicas),
        trained_(trained),
        margin_(margin),
        in_flight_(traits_of(plan.order).in_flight(plan, group)),
        counts_(count_parameters(model)),
        use_(plan.dtype.size()),
        most_(plan.dtype.size(), -1),
        share_(plan.dtype.size(), 0),
        owned_(plan.dtype.size(), 0) {
    for (const DeviceId d : group.devices) {
      use_[idx(d)].element = bytes_of(plan.dtype[idx(d)]);
      use_[idx(d)].state = state_bytes_of(plan, d);
      use_[idx(d)].wire = plan.wire_reduce, use_[idx(d)].feedback = plan.error_feedback;
    }
  }

  void add_to(std::vector<Bytes>& memory) {
    const Shares& tied = model_.tie_embeddings ? group_.head : group_.embed;
    for_sources({&group_.embed, &backward_embed_shares(group_), &tied}, [&](Use& use, DeviceId, double) {
      add_end(use, counts_.embedding, replicas_.embed, UnitPart::kEmbed);
    });
    for (std::size_t l = 0; l < group_.layers.size(); ++l) add_layer(l);
    for_sources({&group_.head}, [&](Use& use, DeviceId device, double tokens) {
      add_end(use, counts_.head, replicas_.head, UnitPart::kHead);
      use.add(use.attention, head_memory(model_, tokens, use.element),
              real(in_flight_(group_.layers.size(), device)), in_wave());
    });
    for (const DeviceId device : group_.devices) {
      const Use& use = use_[idx(device)];
      memory[idx(device)] += use.sum + use.gathered + use.guests +
                             use.attention_visits.at_once(plan_.slots.attention) +
                             use.experts_visits.at_once(plan_.slots.experts) +
                             stage_memory(both(use.attention, use.experts), use.of_window,
                                          std::max(use.reduction, use.messages), in_wave(), use.resends);
    }
  }

 private:
  /// Of one device.
  struct Use {
    Bytes element = 2;  ///< of a number
    StateBytes state;   ///< of a parameter that is trained
    WireReduce wire = WireReduce::kFp32;
    bool feedback = false;
    /// parts: into so many the optimizer's state is divided.
    void add(double parameters, double parts, const Home& home, const StateBytes& each) {
      const bool updates = home.optimizer != Residence::kHost;
      sum += parameters * (updates ? each.total(parts) : each.weights_and_gradients());
    }
    static bool is_gathered(const Home& home, double replicas) {
      return home.weights == Residence::kSharded && replicas > 1;
    }
    HostVisits attention_visits, experts_visits;
    Bytes gathered = 0;  ///< of all its visits, where they are gathered
    Bytes messages = 0;  ///< of a gathered embedding or head
    Bytes guests = 0;    ///< experts of other owners and their gradients
    void reduces(double parameters, double holders, const StateBytes& each) {
      reduction = std::max(reduction, reduction_bytes(parameters, holders, each.gradients, wire));
      if (feedback && holders > 1) sum += parameters * each.gradients;
    }
    void add(OpMemory& ops, OpMemory op, double in_flight, double window) {
      of_window += window * op.saved;
      op.saved *= in_flight;
      ops.add_layers(op, 1);
    }
    Bytes sum = 0;                       ///< states
    OpMemory attention, experts;         ///< `saved` of all microbatches in flight; the head with attention
    double summed = 0, holders = 1;      ///< experts of a layer that others have, too, and how many have them
    Bytes of_window = 0, reduction = 0;  ///< as in stage_memory(), as the next
    bool resends = false;
  };

  double parts(double replicas) const { return plan_.shard_optimizer ? replicas : 1; }

  /// An embedding or a head. Weights that are on the host or gathered are here all the same: a visit lasts a
  /// step.
  void add_end(Use& use, i64 parameters, double replicas, UnitPart part) const {
    const StateBytes each = trained_.of(use.state, part, -1);
    const Home home = home_of(group_, part, -1);
    if (Use::is_gathered(home, parts(replicas))) {
      use.sum += real(parameters) * (each.total() / replicas + each.weights_and_gradients());
      use.messages = std::max(use.messages, gathered_end_messages(real(parameters), replicas, each));
      return;
    }
    use.add(real(parameters), parts(replicas), home, each);
    if (home.weights == Residence::kDevice) use.reduces(real(parameters), replicas, each);
  }

  void add_layer(std::size_t l) {
    const auto layer = static_cast<i64>(l);
    const double rows = rows_sent(plan_, model_, owned_in(l));
    for_sources(
        {&group_.layers[l].attention, &backward_shares(group_.layers[l])},
        [&](Use& use, DeviceId device, double tokens) {
          add_attention(l, use);
          use.resends = use.resends || recompute(l) == Recompute::kResend;
          OpMemory op = attention_memory(plan_, recompute(l), model_, layer, tokens, rows, use.element);
          const double waiting = real(in_flight_(l, device));
          if (waits_on_host(l))
            op = wait_on_host(op, tokens * row_bytes(model_, use.element), waiting, plan_.slots.saved);
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
      const Housed housed = trained_.housed(use.state, UnitPart::kAttention, static_cast<i64>(l));
      use.attention_visits.add(count * housed.visits.weights_and_gradients());
      use.sum += count * housed.stays.total(parts(replicas));
      use.reduces(count, replicas, housed.stays);
    } else if (Use::is_gathered(home, parts(replicas))) {
      use.sum += count * each.total() / replicas;
      use.gathered =
          std::max(use.gathered, gathered_layer_bytes(count, replicas, plan_.slots.attention, each));
    } else {
      use.add(count, parts(replicas), home, each);
      use.reduces(count, replicas, each);
    }
  }

  Housed housed_experts(const Use& use, std::size_t layer) const {
    return trained_.housed(use.state, UnitPart::kExperts, static_cast<i64>(layer));
  }

  /// Experts of each owner of a layer.
  std::vector<double> owned_in(std::size_t layer) {
    std::vector<double> all;
    for (const ExpertOwners& owners : group_.layers[layer].experts) {
      for (const ExpertOwner& owner : owners) owned_[idx(owner.device)] += owner.share;
    }
    for (const DeviceId device : group_.devices) {
      if (const double owned = std::exchange(owned_[idx(device)], 0); owned > 0) all.push_back(owned);
    }
    return all;
  }

  void add_experts(std::size_t layer) {
    const LayerOwners& experts = group_.layers[layer].experts;
    const Home home = home_of(group_, UnitPart::kExperts, static_cast<i32>(layer));
    const bool visits = home.weights == Residence::kHost;
    for (std::size_t e = 0; e < experts.size(); ++e) {
      const double replicas = replicas_.experts[layer][e];
      for (const ExpertOwner& owner : experts[e]) {
        Use& use = use_[idx(owner.device)];
        if (visits)
          use.sum += real(counts_.expert) * housed_experts(use, layer).stays.total(parts(replicas));
        else
          use.add(real(counts_.expert), parts(replicas), home,
                  trained_.of(use.state, UnitPart::kExperts, static_cast<i64>(layer)));
        if (replicas > 1) use.summed += 1, use.holders = replicas;
        share_[idx(owner.device)] += owner.share;
        owned_[idx(owner.device)] += 1;
      }
    }
    add_guests(layer);
    for (const DeviceId device : group_.devices) add_experts_of(layer, device, visits);
  }

  void add_experts_of(std::size_t layer, DeviceId device, bool visits) {
    Use& use = use_[idx(device)];
    double share = std::exchange(share_[idx(device)], 0);
    const double owned = std::exchange(owned_[idx(device)], 0), summed = std::exchange(use.summed, 0);
    const StateBytes each = trained_.of(use.state, UnitPart::kExperts, static_cast<i64>(layer));
    const Housed housed = housed_experts(use, layer);
    if (visits && owned > 0)
      use.experts_visits.add(owned * real(counts_.expert) * housed.visits.weights_and_gradients());
    if (summed > 0) use.reduces(summed * real(counts_.expert), use.holders, visits ? housed.stays : each);
    if (share <= 0) return;
    // Whoever computes a microbatch then computes all of its experts.
    if (group_.layers[layer].experts_at == ExpertsAt::kSources) share = real(model_.num_experts);
    const double waiting = real(in_flight_(layer, device)),
                 tokens = real(largest_microbatch() * plan_.seq_len);
    const double even = tokens * real(model_.top_k) * share / real(model_.num_experts);
    const ExpertWork work = expert_work(plan_, model_, tokens, share, even, margin_);
    OpMemory op = experts_memory(plan_, recompute(layer), model_, work, use.element);
    // Matrices as their adapters change them, and their gradients, are made for each op.
    if (trained_.adapts() && each.gradients > 0)
      op.largest += owned * real(counts_.expert) * use.state.weights_and_gradients();
    // Where a device also computes attention, what is left waits for the dispatch of the whole window.
    if (plan_.weight_gradients == WeightGradients::kAfter)
      op.largest +=
          waiting * work.copies * (expert_left_bytes(model_, use.element) + row_bytes(model_, use.element));
    if (waits_on_host(layer)) op = wait_on_host(op, op.saved, waiting, plan_.slots.saved);
    use.add(use.experts, op, waiting, in_wave());
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
          most = std::max(most, tokens_of(share, plan_.seq_len));
        }
      }
    }
    for (const DeviceId device : group_.devices) {
      const auto d = idx(device);
      const i64 most = std::exchange(most_[d], -1);
      if (most >= 0) add(use_[d], device, real(most));
    }
  }

  Recompute recompute(std::size_t layer) const {
    return group_.layers[layer].recompute.value_or(plan_.recompute);
  }
  i64 largest_microbatch() const {
    return *std::max_element(group_.microbatches.begin(), group_.microbatches.end());
  }
  /// Microbatches that go through a layer together.
  double in_wave() const {
    const auto count = static_cast<i64>(group_.microbatches.size());
    const bool all = plan_.window == 0 && traits_of(plan_.order).zero_window_is_all;
    return real(all ? count : std::min(count, std::max(i64{1}, i64{plan_.window})));
  }

  const Plan& plan_;
  const Group& group_;
  const ModelConfig& model_;
  const Replicas& replicas_;
  const TrainedShares& trained_;
  double margin_;
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

double hit_chance(const ModelConfig& model, double owned) {
  double miss = 1;
  for (i64 k = 0; k < model.top_k; ++k) {
    const double left = real(model.num_experts - k);
    miss *= std::max(0.0, left - owned) / left;
  }
  return 1 - miss;
}

double rows_sent(const Plan& figures, const ModelConfig& model, const std::vector<double>& owned) {
  if (owned.empty()) return 0;
  if (!figures.row_dedup) return real(model.top_k);
  double rows = 0, last = -1, hit = 0;
  for (const double experts : owned) {
    if (experts != std::exchange(last, experts)) hit = hit_chance(model, experts);
    rows += hit;
  }
  return std::min(rows, real(model.top_k));
}

ExpertWork expert_work(const Plan& figures, const ModelConfig& model, double tokens, double owned,
                       double copies, double margin) {
  const double most = std::max(copies, std::min(margin * copies, tokens * real(model.top_k)));
  if (!figures.row_dedup) return {most, most};
  return {std::min({most, tokens, margin * tokens * hit_chance(model, owned)}), most};
}

OpMemory attention_memory(const Plan& figures, Recompute recompute, const ModelConfig& model, i64 layer,
                          double tokens, double rows, Bytes element) {
  const ActivationOptions options = options_of(figures, recompute, element);
  const bool again = recomputes_apart(recompute, model.is_moe(layer));
  const bool leaves = figures.weight_gradients == WeightGradients::kAfter;
  const Bytes left = leaves ? attention_left_bytes(model, layer, element) : 0;
  const Bytes work = tokens * (attention_work_bytes(model, layer, options) + left);
  OpMemory out;
  out.saved = tokens * (attention_saved_bytes(model, layer, options) +
                        (model.is_moe(layer) ? send_index_bytes(rows, real(model.top_k)) : 0));
  // Rows sent and returned, and the gradients of both.
  out.exchanged = tokens * (2 + 2 * rows) * row_bytes(model, element);
  // Gradients inside attention are there when what its exchanges carry has come or has not gone yet.
  const Bytes gradients = tokens * attention_gradient_bytes(model, element) +
                          real(layer_weights(model, layer).attention_part()) * element;
  out.largest = work + std::max(out.exchanged, gradients);
  out.again = again ? work : 0;
  return out;
}

OpMemory experts_memory(const Plan& figures, Recompute recompute, const ModelConfig& model,
                        const ExpertWork& work, Bytes element) {
  const Bytes rows = received_rows_bytes(model, work.rows, work.copies, element);
  const Bytes kept = work.copies * expert_kept_bytes(model, element);
  OpMemory out;
  if (!resends_rows(recompute)) out.saved += rows;
  if (keeps_activations(recompute)) out.saved += kept;
  // Rows are dropped after forward; those of one layer come again.
  if (resends_rows(recompute)) out.again += rows;
  if (recomputes_apart(recompute, true)) out.again += kept;
  // Results, and the gradients of them and of rows.
  out.exchanged = work.rows * 3 * row_bytes(model, element);
  const Bytes inside = work.copies * (expert_work_bytes(model, element) + 3 * row_bytes(model, element)) +
                       activation_work_bytes(model, work.copies, element);
  out.largest = inside / figures.chunks + out.exchanged;
  return out;
}

OpMemory head_memory(const ModelConfig& model, double tokens, Bytes element) {
  OpMemory out;
  out.saved = tokens * row_bytes(model, element);
  out.largest = head_work_bytes(model, tokens, element);
  return out;
}

/// A copy of the own gradients, and from each peer the part that is added here. In half as many bytes these
/// take no more than the sums that are told.
Bytes reduction_bytes(double parameters, double holders, Bytes gradient, WireReduce wire) {
  const double copies = wire == WireReduce::kBf16 ? 1 : 2 - 1 / holders;
  return holders > 1 ? copies * parameters * gradient : 0;
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
                                   const TrainedShares& trained, double margin) {
  std::vector<Bytes> memory(plan.dtype.size(), 0);
  const Replicas replicas = replicas_of(plan, model, times);
  for (const Group& group : plan.groups)
    GroupMemory(plan, group, model, replicas, trained, margin).add_to(memory);
  return memory;
}

}  // namespace hetermoe
