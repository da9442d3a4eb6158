#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/buffer_sizes.h"

// Where a microbatch enters and leaves the model, and the update of the parameters; where it lags, what
// devices get of it and what it gets of their gradients.
namespace hetermoe {
namespace {

void embed_accesses(AccessList& list) {
  if (list.op.phase == Phase::kBackward) {
    list.add(Buffer::kDHidden, Mode::kRead, -1);
    list.add_grad(UnitPart::kEmbed, -1);
    return;
  }
  list.read_params();
  list.add(list.moves_into(0, Phase::kForward) ? Buffer::kMoveOut : Buffer::kHidden, Mode::kWrite, 0);
}

bool embed_has_work(const Op& op, const Placement& placement) {
  return op.phase != Phase::kBackward || placement.states().needs_input_gradient(0);
}

/// Its gradient needs no weights.
std::optional<UsedPart> embed_uses(const Op& op, const Placement&) {
  return op.phase == Phase::kForward ? std::optional(UsedPart{UnitPart::kEmbed, -1}) : std::nullopt;
}
std::optional<UsedPart> embed_grades(const Op& op, const Placement&) {
  return op.phase == Phase::kBackward ? std::optional(UsedPart{UnitPart::kEmbed, -1}) : std::nullopt;
}

void embed_work(const WorkModel& model, const ExchangeLoad*, ComputeWork& work) { model.add_tokens(work); }

void head_accesses(AccessList& list) {
  const i32 num_layers = list.p.num_layers();
  list.read_params();
  list.read_input(num_layers);
  if (!list.p.options().backward) return;
  list.write_input_gradient(num_layers);
  list.add_grad(UnitPart::kHead, -1);
  list.add_grad(UnitPart::kEmbed, -1);  // tied embeddings; only there has a head device that state
  list.add_figures();                   // the loss
}

std::optional<UsedPart> head_uses(const Op&, const Placement& placement) {
  return UsedPart{placement.states().tied() ? UnitPart::kEmbed : UnitPart::kHead, -1};
}
std::optional<UsedPart> head_grades(const Op& op, const Placement& placement) {
  return placement.options().backward ? head_uses(op, placement) : std::nullopt;
}

void head_work(const WorkModel& model, const ExchangeLoad*, ComputeWork& work) {
  const Placement& p = model.placement();
  const i32 input = p.num_layers();
  work.frozen = model.frozen_part(work.device, *head_uses(work.op, p));
  const bool merges = p.merges_at(work.op.group, input, work.op.microbatch);
  model.add_tokens(work, merges ? std::optional(input) : std::nullopt);
}

Bytes head_workspace(BufferSizes& sizes, const Op& op, DeviceId device) {
  const double tokens = sizes.tokens(sizes.placement().num_layers(), op.microbatch, device);
  return head_work_bytes(sizes.model(), tokens, sizes.element(device));
}

void update_accesses(AccessList& list) {
  list.read(Buffer::kNorm);
  list.add(list.p.states().sums_apart(list.op.state) ? Buffer::kTaken : Buffer::kGrad, Mode::kAdd);
  list.add(Buffer::kParams, Mode::kAdd);
}

void update_work(const WorkModel& model, const ExchangeLoad*, ComputeWork& work) {
  work.params = model.trained_params(work.op.state) / model.optimizer_parts(work.op.state);
}

Bytes update_workspace(BufferSizes& sizes, const Op& op, DeviceId device) {
  return update_work_bytes(sizes.work().trained_params(op.state), sizes.gradient(device),
                           optimizer_widths_of(sizes.placement().plan()));
}

void publish_accesses(AccessList& list) {
  list.read(Buffer::kParams);
  list.write(Buffer::kPublished);
}

/// Weights are read and written.
void publish_work(const WorkModel& model, const ExchangeLoad*, ComputeWork& work) {
  const DeviceId device = model.placement().first_device(work.device);
  work.copied =
      model.state_params(work.op.state) * (2.0 * bytes_of(model.placement().plan().dtype[idx(device)]));
}

void take_accesses(AccessList& list) {
  list.add(Buffer::kGrad, Mode::kTake);
  list.write(Buffer::kTaken);
}

/// Gradients are read and written, and those that were copied are cleared.
void take_work(const WorkModel& model, const ExchangeLoad*, ComputeWork& work) {
  const DeviceId device = model.placement().first_device(work.device);
  work.copied =
      model.state_params(work.op.state) * (3.0 * bytes_of(grad_dtype_of(model.placement().plan(), device)));
}

}  // namespace

const OpRow op_rows::embed = {
    .phases = Phases::kForwardBackward,
    .queue = QueueRule::always(Queue::kCompute),
    .participants = Participants::kOneDevice,
    .stage = Stage::kEmbed,
    .occurs = Occurs::kInMicrobatch,
    .has_microbatch = true,
    .pricing = Pricing::kEmbedding,
    .accesses = embed_accesses,
    .has_work = embed_has_work,
    .uses = embed_uses,
    .grades = embed_grades,
    .work = embed_work,
};

const OpRow op_rows::head = {
    .phases = Phases::kForward,  // its backward belongs to the same op
    .queue = QueueRule::always(Queue::kCompute),
    .participants = Participants::kOneDevice,
    .stage = Stage::kHead,
    .occurs = Occurs::kInMicrobatch,
    .has_microbatch = true,
    .pricing = Pricing::kHead,
    .accesses = head_accesses,
    .uses = head_uses,
    .grades = head_grades,
    .work = head_work,
    .workspace = head_workspace,
};

const OpRow op_rows::update = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kCompute),
    .participants = Participants::kOneDevice,
    .occurs = Occurs::kPerState,
    .has_state = true,
    .pricing = Pricing::kUpdate,
    .accesses = update_accesses,
    .work = update_work,
    .workspace = update_workspace,
};

const OpRow op_rows::publish = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kCompute),
    .participants = Participants::kOneDevice,
    .occurs = Occurs::kPerLaggingState,
    .has_state = true,
    .pricing = Pricing::kHostCopy,
    .accesses = publish_accesses,
    .work = publish_work,
};

const OpRow op_rows::take = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kCompute),
    .participants = Participants::kOneDevice,
    .occurs = Occurs::kPerLaggingState,
    .has_state = true,
    .pricing = Pricing::kHostCopy,
    .accesses = take_accesses,
    .work = take_work,
};

}  // namespace hetermoe
