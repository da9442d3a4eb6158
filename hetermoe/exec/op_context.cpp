#include "hetermoe/exec/op_context.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/device/host_copy.h"
#include "hetermoe/nn/rows.h"
#include "hetermoe/ops/buffer_index.h"

namespace hetermoe {

OpContext::OpContext(const RunContext& run, DeviceState& device_state)
    : model(run.model),
      cluster(run.cluster),
      p(run.placement),
      schedule(run.schedule),
      migration(run.migration),
      state(device_state),
      slots(0, 0, 0) {
  const Plan& plan = p.plan();
  i64 begin = 0;
  std::size_t num_microbatches = 0;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& members = plan.groups[g];
    group_begin_.push_back(begin);
    microbatch_begin_.emplace_back();
    i64 within = 0;
    for (const i64 sequences : members.microbatches) {
      microbatch_begin_.back().push_back(within);
      within += sequences;
    }
    begin += within;
    if (std::find(members.devices.begin(), members.devices.end(), device()) != members.devices.end()) {
      group = static_cast<i32>(g);
      num_microbatches = members.microbatches.size();
    }
  }
  if (device() >= p.num_devices()) {  // a host routes nothing, and serves devices of any group
    for (const Group& members : plan.groups)
      num_microbatches = std::max(num_microbatches, members.microbatches.size());
    slots = Slots(p.num_layers(), static_cast<i32>(num_microbatches), 0, p.num_saved_pieces());
    return;
  }
  slots = Slots(p.num_layers(), static_cast<i32>(num_microbatches), num_chunk_slots(plan));
  for (i32 l = 0; l < p.num_layers(); ++l) {
    routing.emplace_back(owner_table(p, group, l), static_cast<i64>(p.num_owners(group, l)), where());
  }
}

void OpContext::begin_step(const StepInput& step) {
  input = &step;
  result = {};
  grad_factor = 1;
  wire_losses = {};
  const std::size_t num_microbatches = p.plan().groups[idx(group)].microbatches.size();
  losses.assign(num_microbatches, {});
  aux.assign(idx(p.num_layers()), std::vector<at::Tensor>(num_microbatches));
  counts_LE =
      at::zeros({p.num_layers(), model.num_experts}, at::TensorOptions().dtype(at::kLong).device(where()));
  dropped_L = expert_capacity() > 0 ? at::zeros({p.num_layers()}, counts_LE.options()) : at::Tensor();
  tokens = to_device(step.tokens, where());
  targets = to_device(step.targets, where());
  if (p.options().backward) state.zero_grads();
  foreseen = foreseen_splits(*this);
}

DecidedSplit* OpContext::decided(const Op& op) {
  if (p.tallies(op.group, op.layer)) {
    const auto& told = slots.layer(op.layer, op.microbatch).tally;
    HM_CHECK(told != nullptr, "needs the tally of its layer, which nobody told");
    return told.get();
  }
  if (foreseen.empty() || !p.divides(op.group, op.layer)) return nullptr;
  return &foreseen[idx(op.layer * p.num_microbatches(group) + op.microbatch)];
}

LayerRouting& OpContext::routing_of(const Op& op) {
  if (p.lends(op.group, op.layer) && decided(op) != nullptr && decided(op)->routing)
    return *decided(op)->routing;
  return routing[idx(op.layer)];
}

OpContext::Sequences OpContext::sequences(const Op& op, i32 stage) const {
  const TokenRange own = p.ranges(op.group, stage, op.microbatch, op.phase).of(device());
  const i64 seq_len = p.plan().seq_len, begin = own.begin / seq_len;
  if (own.tokens() == 0) return {begin, 0, 0, 0};
  return {begin, (own.end - 1) / seq_len + 1 - begin, own.begin % seq_len, own.tokens()};
}

at::Tensor OpContext::rows_of(const at::Tensor& all, const Op& op, i32 stage) const {
  const TokenRange own = p.ranges(op.group, stage, op.microbatch, op.phase).of(device());
  return rows_of(all, op.microbatch, own.begin, own.tokens());
}

at::Tensor OpContext::rows_of(const at::Tensor& all, i32 microbatch, i64 begin, i64 count) const {
  return all.flatten(0, 1).narrow(0, first_token(microbatch) + begin, count).reshape({-1});
}

bool OpContext::keeps_activations(const Op& op) const {
  return hetermoe::keeps_activations(p.recompute(op.group, op.layer)) && p.options().backward;
}

namespace {

/// Where results go to the next layer, its devices know the tokens of these rows by what came with the
/// residual stream, and their number by the counts of the sources.
void check_next_rows(i32 layer, std::size_t owner, const at::Tensor& tokens, const at::Tensor& rows) {
  if (tokens.size(0) == rows.size(0)) return;
  fail<TransportError>(
      fmt::format("rows of layer {}", layer),
      "from the experts' device {} of the layer: got {}, expected {} by the owners of choices "
      "that came with the residual stream",
      owner, rows.size(0), tokens.size(0));
}

}  // namespace

at::Tensor OpContext::merged(const Op& op, i32 layer) {
  LayerSlot& slot = slots.layer(layer - 1, op.microbatch);
  if (!p.is_moe(layer - 1)) return slot.residual;
  std::vector<MergePart> parts;
  for (ChunkSlot& chunk : slot.chunks) {
    const std::vector<at::Tensor> tokens = chunk.routed.tokens_back();
    for (std::size_t i = 0; i < chunk.returned.size(); ++i) {
      if (p.joins_at(op.group, layer, op.microbatch))
        check_next_rows(layer - 1, i, tokens[i], chunk.returned[i]);
      parts.push_back({tokens[i], chunk.returned[i]});
    }
  }
  return merge_rows(slot.residual, parts);
}

at::Tensor OpContext::take_input(const Op& op, i32 layer) {
  LayerSlot& slot = slots.layer(layer, op.microbatch);
  if (p.merges_at(op.group, layer, op.microbatch)) slot.hidden = merged(op, layer);
  return slot.hidden;
}

std::string OpContext::name_of_peer(DeviceId peer) const {
  return fmt::format("message of device {} ({})", peer, cluster.device_name(peer));
}

i64 OpContext::expert_capacity() const {
  const double factor = input->router.capacity_factor;
  return factor == 0 ? 0 : hetermoe::expert_capacity(model, factor, p.plan().seq_len);
}

double OpContext::forward_loss() const {
  std::vector<at::Tensor> values;
  for (const at::Tensor& loss : losses) {
    if (loss.defined()) values.push_back(loss.to(at::kDouble));
  }
  if (values.empty()) return 0;
  const at::Tensor host = to_host(at::stack(values), "losses");
  return std::accumulate(host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel(), 0.0);
}

}  // namespace hetermoe
