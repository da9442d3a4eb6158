#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/buffer_sizes.h"

// All that hold a state tell each other their squared gradients and their losses.
namespace hetermoe {
namespace {

void norm_accesses(AccessList& list) {
  for (const i32 state : list.p.states().on(list.device)) {
    if (!list.p.states().tells_squares(state, list.device)) continue;
    list.add_of_state(list.p.states().sums_apart(state) ? Buffer::kTaken : Buffer::kGrad, Mode::kRead, state);
  }
  list.add_figures();
  list.write(Buffer::kNorm);
}

/// Two numbers to each of the others.
std::vector<PortBytes> norm_bytes(const WorkModel& model, const Op&, std::span<const PlaceId> participants,
                                  const ExchangeLoad*) {
  return model.all_to_all_bytes(participants, 16);
}

Bytes norm_workspace(BufferSizes& sizes, const Op&, DeviceId device) {
  double largest = 0;
  for (const i32 state : sizes.placement().states().on(device))
    largest =
        std::max(largest, sizes.placement().states().trains(state) ? sizes.work().trained_params(state) : 0);
  return norm_work_bytes(largest, sizes.gradient(device));
}

}  // namespace

const OpRow op_rows::norm = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kReduce),
    .participants = Participants::kStateHolders,
    .occurs = Occurs::kPerStep,
    .accesses = norm_accesses,
    .bytes = norm_bytes,
    .workspace = norm_workspace,
};

}  // namespace hetermoe
