#include "hetermoe/train/session/batch.h"

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"

namespace hetermoe {

StepInput input_of(const Batch& batch) {
  if (batch.target_count == 0)
    fail<InputError>("data",
                     "no token of the step has a target that is counted: its documents are single tokens, or "
                     "nobody answers in its conversations; expected text, or more train.sequences");
  const auto tensor = [&](const std::vector<i64>& values) {
    return at::tensor(values, at::kLong).view({batch.num_sequences, batch.seq_len});
  };
  StepInput input;
  input.tokens = tensor(batch.tokens);
  input.targets = tensor(batch.targets);
  input.target_count = batch.target_count;
  if (!batch.starts.empty()) input.starts = tensor(batch.starts);
  return input;
}

void reorder(StepInput& input, const std::vector<i64>& order) {
  const at::Tensor from = at::tensor(order, at::kLong);
  const auto put = [&](at::Tensor& of_sequences) {
    if (of_sequences.defined()) of_sequences = of_sequences.index_select(0, from);
  };
  put(input.tokens);
  put(input.targets);
  put(input.starts);
  for (at::Tensor& of_layer : input.choices) put(of_layer);
}

u64 hash_of(const StepInput& input) {
  const u64 tokens = checksum(input.tokens.const_data_ptr(), input.tokens.nbytes());
  return checksum(input.targets.const_data_ptr(), input.targets.nbytes(), tokens);
}

}  // namespace hetermoe
