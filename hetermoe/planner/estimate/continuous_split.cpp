#include "hetermoe/planner/estimate/continuous_split.h"

#include <algorithm>
#include <cmath>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/plan/recompute.h"

namespace hetermoe {

/// Sequences of a step per attention device of each class.
std::vector<double> quotas(const Rates& rates, const Sketch& sketch, const SketchGroup& group) {
  std::vector<double> weights(rates.num_classes(), 0);
  double sum = 0;
  for (std::size_t c = 0; c < weights.size(); ++c) {
    if (group.attention[c] == 0) continue;
    weights[c] = group.by_speed ? 1 / rates.attention(c, 1, sketch.recompute).sum() : 1;
    sum += weights[c] * real(group.attention[c]);
  }
  for (double& weight : weights) weight *= real(group.sequences) / sum;
  return weights;
}

namespace {

double in_flight(const Sketch& sketch, const SketchGroup& group) {
  return real(sketch.window > 0 ? std::min<i64>(sketch.window, group.microbatches) : group.microbatches);
}

class PartMaker {
 public:
  PartMaker(const Rates& rates, const Sketch& sketch, const SketchGroup& group, std::size_t groups)
      : rates_(rates), sketch_(sketch), group_(group), groups_(real(groups)), model_(rates.request().model) {
    element_ = bytes_of(rates.request().dtype);
    options_ = {element_, kept_activations(sketch.recompute), false, rates.request().seq_len};
    microbatch_ = real(group.sequences) / real(group.microbatches);
    const double of_sequence =
        real(rates.request().seq_len * model_.top_k) / std::max(1.0, real(model_.num_experts));
    copies_ = microbatch_ * of_sequence;
    const i64 owners = sum_of(group.count) - (group.mixed ? 0 : sum_of(group.attention));
    const double margin = std::min(rates.request().routing.margin, real(std::max<i64>(1, owners)));
    most_copies_ = std::ceil(microbatch_ - 1e-9) * of_sequence * margin;
    const double owned = real(model_.num_experts) / real(std::max<i64>(1, owners));
    rows_ =
        std::min(1.0, rates.hit(owned) / std::max(1e-9, owned * of_sequence / real(rates.request().seq_len)));
    all_rows_ = std::min(real(model_.top_k), real(owners) * rates.hit(owned));
  }

  Part make(std::size_t cls, i64 count, double quota) const {
    Part part;
    part.cls = cls;
    part.count = real(count);
    part.attention = quota > 0;
    part.experts = quota <= 0 || group_.mixed;
    const double times = real(group_.microbatches);
    part.sequences = quota / times;
    part.most = std::ceil(quota / times - 1e-9);
    if (part.attention) add_attention(part);
    part.unit_s = times * rates_.experts(cls, copies_, 1, sketch_.recompute).sum();
    part.unit =
        real(rates_.counts().expert) * state_bytes(UnitPart::kExperts, groups_) +
        saved_share(rates_.moe_layers()) * in_flight(sketch_, group_) * most_copies_ * saved_of_copy();
    // The op on the experts of one layer, which may be one more than the mean.
    const Bytes op = most_copies_ * working_set();
    part.unit += op / std::max(1.0, rates_.moe_layers());
    part.fixed += part.experts ? op : 0;
    return part;
  }

 private:
  void add_attention(Part& part) const {
    // A device with less than a sequence per microbatch has whole ones in some of them.
    const double in_one = std::max(1.0, part.sequences), share = part.sequences / in_one;
    const double times = real(group_.microbatches) * share;
    part.attention_s =
        sketch_.bias * times *
        (real(model_.num_layers) * rates_.attention(part.cls, in_one, sketch_.recompute).sum() +
         rates_.head(part.cls, in_one));
    const double tokens = part.most * real(rates_.request().seq_len);
    const i64 moe = first_moe();
    const double replicas = groups_ * real(sum_of(group_.attention));
    const double embed = real(rates_.counts().embedding), head = real(rates_.counts().head);
    const double ends = embed + head;
    part.fixed = embed * state_bytes(UnitPart::kEmbed, replicas) +
                 head * state_bytes(UnitPart::kHead, replicas) +
                 (rates_.attention_parameters() - ends) * state_bytes(UnitPart::kAttention, replicas);
    const double layers = real(model_.num_layers), away = 1 - saved_share(layers);
    part.fixed +=
        in_flight(sketch_, group_) * tokens *
        (layers * (attention_saved_bytes(model_, moe, options_) - away * row_bytes(model_, element_)) +
         row_bytes(model_, element_));
    const Bytes attention =
        attention_work_bytes(model_, moe, options_) + (2 + 2 * all_rows_) * row_bytes(model_, element_);
    part.fixed += std::max(tokens * attention, head_work_bytes(model_, tokens, element_));
  }
  /// Of a parameter on so many devices.
  Bytes state_bytes(UnitPart part, double replicas) const {
    return rates_.state_bytes(part, sketch_.shard_optimizer ? replicas : 1);
  }
  double saved_share(double layers) const {
    return rates_.saved_share(sketch_.recompute, layers, in_flight(sketch_, group_));
  }
  /// Of a copy: several of a token are sent as one row.
  Bytes saved_of_copy() const {
    const Bytes row = row_bytes(model_, element_);
    const Bytes shared = sketch_.recompute == Recompute::kResend ? row : (1 - rows_) * row;
    return expert_saved_bytes(model_, options_) - (sketch_.recompute == Recompute::kSelect ? 0 : shared);
  }
  Bytes working_set() const {
    const Bytes row = row_bytes(model_, element_);
    const Bytes again = resends_rows(sketch_.recompute) ? in_flight(sketch_, group_) * rows_ * row : 0;
    return (expert_work_bytes(model_, element_) + 3 * row) / sketch_.chunks + 3 * rows_ * row + again;
  }
  i64 first_moe() const {
    i64 layer = 0;
    while (layer + 1 < model_.num_layers && !model_.is_moe(layer)) ++layer;
    return layer;
  }
  const Rates& rates_;
  const Sketch& sketch_;
  const SketchGroup& group_;
  double groups_;  ///< of the plan, all like this one
  const ModelConfig& model_;
  Bytes element_ = 2;
  ActivationOptions options_;
  double microbatch_ = 0;  ///< sequences, mean
  double copies_ = 0,
         most_copies_ = 0;          ///< of tokens for an expert: in the mean and in the fullest microbatch
  double rows_ = 1, all_rows_ = 0;  ///< that are sent: of a copy, of a token
};

std::vector<Part> make_parts(const Rates& rates, const Sketch& sketch, const SketchGroup& group,
                             std::size_t groups) {
  const PartMaker maker(rates, sketch, group, groups);
  const std::vector<double> quota = quotas(rates, sketch, group);
  std::vector<Part> parts;
  for (std::size_t c = 0; c < rates.num_classes(); ++c) {
    if (group.attention[c] > 0) parts.push_back(maker.make(c, group.attention[c], quota[c]));
    const i64 rest = group.count[c] - group.attention[c];
    if (rest > 0) parts.push_back(maker.make(c, rest, 0));
  }
  return parts;
}

}  // namespace

double expert_room(const Rates& rates, const Part& part, double squeeze) {
  const Bytes left = (rates.usable_memory(part.cls) - part.fixed) * squeeze;
  return part.experts && left > 0 ? left / part.unit : 0;
}

namespace {

/// Experts of all layers, as real numbers: every owner is filled to the same finish, or to its memory.
bool pour(const Rates& rates, std::vector<Part>& parts, double units) {
  std::vector<double> room;
  // What all owners take up to a finish is piecewise linear in it: an owner begins when its attention is done
  // and ends when it is full.
  struct Bend {
    Seconds at;
    double growth;
  };
  std::vector<Bend> bends;
  double total = 0;
  for (const Part& part : parts) {
    room.push_back(expert_room(rates, part, 1));
    total += part.count * room.back();
    const double growth = part.count / part.unit_s;
    bends.push_back({part.attention_s, growth});
    bends.push_back({part.attention_s + room.back() * part.unit_s, -growth});
  }
  if (total < units) return false;
  std::sort(bends.begin(), bends.end(), [](const Bend& a, const Bend& b) { return a.at < b.at; });
  double filled = 0, growth = 0;
  Seconds finish = bends.front().at;
  for (const Bend& bend : bends) {
    const double more = growth * (bend.at - finish);
    if (filled + more >= units) break;
    filled += more, finish = bend.at, growth += bend.growth;
  }
  if (growth > 0) finish += (units - filled) / growth;
  for (std::size_t i = 0; i < parts.size(); ++i)
    parts[i].owned = std::clamp((finish - parts[i].attention_s) / parts[i].unit_s, 0.0, room[i]);
  return true;
}

Shortage shortage_of(const Rates& rates, const std::vector<Part>& parts, double units) {
  double owners = 0;
  for (const Part& part : parts) owners += part.experts ? part.count : 0;
  Shortage worst;
  double excess = 0;
  for (const Part& part : parts) {
    const Bytes need = part.fixed + (part.experts ? units / owners * part.unit : 0);
    const double ratio = need / std::max(1.0, rates.usable_memory(part.cls));
    if (ratio > excess)
      worst = {part.cls, need, part.attention, part.most, part.experts ? units / owners : 0}, excess = ratio;
  }
  return worst;
}

}  // namespace

std::string to_string(const Rates& rates, const Shortage& shortage) {
  const DeviceClass& cls = rates.classes()[shortage.cls];
  const DeviceType& type = rates.request().cluster.types[static_cast<std::size_t>(cls.type)];
  std::string cause;
  if (shortage.attention) cause += " at " + counted(std::llround(shortage.sequences), "sequence");
  if (shortage.experts > 0) {
    cause += fmt::format(
        " {} {}", shortage.attention ? "with" : "for",
        counted(static_cast<i64>(std::ceil(shortage.experts)), "expert") + " (all layers together)");
  }
  return fmt::format(
      "device {} {} needs {}{}", rates.request().cluster.device_name(cls.devices.front()),
      room_text(type, rates.usable_memory(shortage.cls), rates.request().limits.memory_reserve),
      memory_text(shortage.need), cause);
}

std::vector<Part> split_work(const Rates& rates, const Sketch& sketch, const SketchGroup& group,
                             std::size_t groups, std::optional<Shortage>& shortage) {
  std::vector<Part> parts = make_parts(rates, sketch, group, groups);
  const double units = rates.moe_layers() * real(rates.request().model.num_experts);
  const bool too_full = std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
    return part.fixed > rates.usable_memory(part.cls);
  });
  if (too_full || (units > 0 && !pour(rates, parts, units))) {
    shortage = shortage_of(rates, parts, units);
    return parts;
  }
  for (Part& part : parts) part.owned /= std::max(1.0, rates.moe_layers());
  return parts;
}

}  // namespace hetermoe
