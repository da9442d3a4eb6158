#include "hetermoe/schedule/op.h"

namespace hetermoe {

std::string lane_name(LaneId lane) {
  const std::string& queue = name_of(queue_of(lane));
  return link_of(lane) == 0 ? queue : fmt::format("{} {}", queue, link_of(lane));
}

Queue queue_of_op(const Op& op, QueueBinding binding) {
  const QueueRule& rule = traits(op.kind).queue;
  // Weights that visit must not wait for gradients of the layers before them.
  if (op.kind == OpKind::kAllGather && op.slot >= 0 && binding != QueueBinding::kSingle)
    return Queue::kToDevice;
  switch (binding) {
    case QueueBinding::kDirection:
      return op.phase == Phase::kBackward ? rule.backward : rule.forward;
    case QueueBinding::kPhase:
      if (op.phase == Phase::kBackward) return rule.phase_backward;
      return op.phase == Phase::kRecompute ? rule.phase_recompute : rule.forward;
    case QueueBinding::kName:
      return rule.by_name;
    case QueueBinding::kSingle:
      return rule.single;
  }
  HM_CHECK(false, "queue binding {}", static_cast<i32>(binding));
  return Queue::kCompute;
}

i32 stage_of(const Op& op, i32 num_layers) {
  switch (traits(op.kind).stage) {
    case Stage::kEmbed:
      return -1;
    case Stage::kLayer:
      return op.layer;
    case Stage::kLayerBefore:
      return op.layer - 1;
    case Stage::kHead:
      return num_layers;
    case Stage::kNone:
      break;
  }
  HM_CHECK(false, "{} follows no shares", to_string(op));
  return -1;
}

std::string to_string(const Op& op) {
  std::string text = name_of(op.kind);
  if (traits(op.kind).phases != Phases::kNone) text += "." + name_of(op.phase);
  if (op.layer >= 0) text += fmt::format(" l{}", op.layer);
  if (op.microbatch >= 0) text += fmt::format(" m{}", op.microbatch);
  if (op.chunk > 0) text += fmt::format(" c{}", op.chunk);
  if (op.group > 0) text += fmt::format(" g{}", op.group);
  if (op.state >= 0) text += fmt::format(" s{}", op.state);
  if (op.device >= 0) text += fmt::format(" d{}", op.device);
  return text;
}

}  // namespace hetermoe
