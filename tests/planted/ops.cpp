#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/work.h"

// Rows of two kinds that tests/planted_kinds.py adds to a copy of the program: a transfer once in a step, and
// a compute op once for each state.
namespace hetermoe {
namespace {

void planted_sum_accesses(AccessList& list) {
  list.add_figures();
  list.add(BufferKey::of_step(Buffer::kPlanted), Mode::kWrite);
}

std::vector<PortBytes> planted_sum_bytes(const WorkModel& model, const Op&,
                                         std::span<const PlaceId> participants, const ExchangeLoad*) {
  return model.all_to_all_bytes(participants, 8);
}

void planted_pass_accesses(AccessList& list) {
  list.read(Buffer::kPlanted);
  list.read(Buffer::kParams);
}

void planted_pass_work(const WorkModel& model, const ExchangeLoad*, ComputeWork& work) {
  work.params = model.trained_params(work.op.state);
}

}  // namespace

const OpRow op_rows::planted_sum = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kReduce),
    .participants = Participants::kStateHolders,
    .occurs = Occurs::kPerStep,
    .accesses = planted_sum_accesses,
    .bytes = planted_sum_bytes,
};

const OpRow op_rows::planted_pass = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kCompute),
    .participants = Participants::kOneDevice,
    .occurs = Occurs::kPerState,
    .has_state = true,
    .pricing = Pricing::kUpdate,
    .accesses = planted_pass_accesses,
    .work = planted_pass_work,
};

}  // namespace hetermoe
