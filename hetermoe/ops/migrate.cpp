#include "hetermoe/ops/op_row.h"

namespace hetermoe {

/// Units go to their new holders between steps, where there are no buffers. Priced by its moves
/// (cost/price_migration.h).
const OpRow op_rows::migrate = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kMove),
    .participants = Participants::kMovers,
    .occurs = Occurs::kBetweenSteps,
    .has_layer = true,
};

}  // namespace hetermoe
