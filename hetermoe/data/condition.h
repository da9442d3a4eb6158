#pragma once
#include "hetermoe/base/fields.h"
#include "hetermoe/data/sampler.h"

namespace hetermoe {

/// The text that a model reads while its routing is recorded. Differences between neighbouring conditions
/// show which property of a text evens routing out: text = the training text; heldout = the validation text;
/// shuffled = the tokens of each sequence of the training text in another order; unigram = tokens drawn by
/// their frequency in the batch; mock = tokens drawn evenly; constant = one token.
enum class TextCondition { kText, kHeldout, kShuffled, kUnigram, kMock, kConstant };
template <>
struct EnumNames<TextCondition> {
  static const std::vector<std::string>& names();
};

/// Changes the tokens of a batch as the condition says; targets follow from them. vocab: tokens are below it.
/// The same seed and `first` (number of the batch's first sequence) give the same tokens on every machine.
/// text and heldout change nothing: they are a matter of the sampler.
void apply_condition(TextCondition condition, i64 vocab, u64 seed, i64 first, Batch& batch);

}  // namespace hetermoe
