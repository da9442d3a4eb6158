#pragma once
#include <string>
#include <vector>

#include "hetermoe/data/condition.h"
#include "hetermoe/data/sampler.h"
#include "hetermoe/train/job/job.h"
#include "hetermoe/train/run/route_recorder.h"

namespace hetermoe {

/// The text of a run: what it trains on, what it validates on, and the domains of both.
class RunText {
 public:
  /// A source whose validation text is looked at.
  struct ValidationSource {
    std::string name;
    std::uint32_t domain;
    double share;
    Sampler sampler;
  };

  /// Keeps references to both.
  RunText(const Job& job, const Dataset& data);
  RunText(const RunText&) = delete;
  RunText& operator=(const RunText&) = delete;

  const Sampler& train() const { return train_; }
  const std::vector<ValidationSource>& validation() const { return validation_; }  ///< empty = no validation
  double unigram_entropy() const { return unigram_entropy_; }  ///< of the validation text, nats
  u64 checksum() const { return checksum_; }
  const std::string& name() const { return name_; }  ///< see name_of_text()
  i64 num_domains() const { return static_cast<i64>(domains_.size()); }

  RecordedText recorded(TextCondition condition) const;
  /// Domains of the sequences of a step that begins with `first`.
  std::vector<i32> domains_from(i64 first) const;
  /// The batch that a step reads under a condition, from sequence `first`; of several sources' validation
  /// texts steps take one after another. Throws ConfigError for heldout where there is no validation text.
  Batch batch(TextCondition condition, i64 first, i64 vocab) const;

 private:
  const Job& job_;
  std::vector<std::string> domains_;  // none where the text has one source
  std::vector<std::uint32_t> domain_of_source_;
  Sampler train_;
  std::vector<ValidationSource> validation_;
  double unigram_entropy_ = 0;
  u64 checksum_;
  std::string name_;
};

}  // namespace hetermoe
