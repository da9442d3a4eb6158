#include "hetermoe/train/run/run_text.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// [sources]
std::vector<std::uint32_t> domains_of_sources(const Dataset& data, const std::vector<std::string>& domains) {
  std::vector<std::uint32_t> out;
  for (const Source& source : data.sources) {
    const auto at = std::find(domains.begin(), domains.end(), source.domain);
    out.push_back(at == domains.end() ? kNoDomain : static_cast<std::uint32_t>(at - domains.begin()));
  }
  return out;
}

}  // namespace

RunText::RunText(const Job& job, const Dataset& data)
    : job_(job),
      domains_(data.domains()),
      domain_of_source_(domains_of_sources(data, domains_)),
      train_(data, {job.train.seq_len, job.train.seed}),
      checksum_(data.checksum()),
      name_(name_of_text(checksum_, data, job.train)) {
  if (job.train.validation_sequences == 0) return;
  for (i64 s = 0; s < static_cast<i64>(data.sources.size()); ++s) {
    const Source& source = data.sources[idx(s)];
    if (source.validation.size() == 0) continue;
    const SamplerOptions how = {job.train.seq_len, job.train.seed, /*validation=*/true, s};
    validation_.push_back({source.name, domain_of_source_[idx(s)], source.share, Sampler(data, how)});
    unigram_entropy_ += source.share * hetermoe::unigram_entropy(source.validation);
  }
}

RecordedText RunText::recorded(TextCondition condition) const {
  const bool is_own = condition == TextCondition::kText;
  RecordedText out{.condition = name_of(condition),
                   .name = is_own ? name_ : name_ + " " + name_of(condition),
                   .domains = domains_};
  if (domains_.empty()) return out;
  if (condition != TextCondition::kHeldout) {
    out.domain_of = [this](i64 sequence) { return domain_of_source_[idx(train_.draw(sequence).source)]; };
  } else {
    out.domain_of = [this](i64 sequence) {
      return validation_[idx(sequence / job_.train.sequences) % validation_.size()].domain;
    };
  }
  return out;
}

std::vector<i32> RunText::domains_from(i64 first) const {
  const RecordedText text = recorded(TextCondition::kText);
  std::vector<i32> out;
  for (i64 s = 0; s < job_.train.sequences; ++s) out.push_back(static_cast<i32>(text.domain_of(first + s)));
  return out;
}

Batch RunText::batch(TextCondition condition, i64 first, i64 vocab) const {
  const i64 count = job_.train.sequences;
  if (condition == TextCondition::kHeldout && validation_.empty())
    fail<ConfigError>("--condition",
                      "got heldout, expected a job with validation text (data.validation_share, "
                      "train.validate_every)");
  const Sampler& sampler = condition == TextCondition::kHeldout
                               ? validation_[idx(first / count) % validation_.size()].sampler
                               : train_;
  Batch batch = sampler.batch(first, count, vocab);
  apply_condition(condition, vocab, static_cast<u64>(job_.train.seed), first, batch);
  return batch;
}

}  // namespace hetermoe
