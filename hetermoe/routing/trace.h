#pragma once
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"
#include "hetermoe/base/types.h"

// The routing trace: which experts each token of each sequence of each step chose in each layer. It knows no
// devices and no plan. The file is described in docs/routing.md.
namespace hetermoe {

inline constexpr std::uint16_t kNoExpert = 0xffff;  ///< a choice that was not made: padding, a dropped token
inline constexpr std::uint32_t kNoDomain = 0xffffffff;
/// Limit of the trace format: ids are 16 bits wide, and all ones is no expert.
inline constexpr i64 kMostTraceExperts = 65535;

enum class TraceWeights { kNone, kF32 };
template <>
struct EnumNames<TraceWeights> {
  static const std::vector<std::string>& names();
};

/// Properties of a whole trace.
struct TraceHeader {
  std::vector<i64> layers;  ///< indices of the layers with experts that are recorded, ascending
  i64 num_experts = 0, top_k = 0;
  TraceWeights weights = TraceWeights::kNone;
  std::vector<std::string> domains;  ///< names
  std::optional<std::string> model;
  std::optional<i64> seq_len;
  std::optional<std::string> condition, source, job;
  std::optional<std::string> text = {};
  std::optional<i64> sequences = {};
  bool operator==(const TraceHeader&) const = default;
  template <class V>
  void fields(V& v) {
    v("layers", layers, "indices of the layers with experts that are recorded", required(between(0, 1e6)));
    v("num_experts", num_experts, "experts of a layer", required(between(1, kMostTraceExperts)));
    v("top_k", top_k, "experts of a token", required(between(1, kMostTraceExperts)));
    v("weights", weights, "routing weights beside the choices: none or f32", required());
    v("domains", domains, "names of the domains of sequences", required());
    v("model", model, "name of the model");
    v("seq_len", seq_len, "tokens per sequence where all have as many", at_least(1));
    v("condition", condition, "which data: text, mock, ...");
    v("source", source, "what wrote the trace");
    v("job", job, "of which job");
    v("text", text, "checksum of the text, its order and the length of sequences");
    v("sequences", sequences, "sequences of a step where all have as many", at_least(1));
  }
};

struct TraceSequence {
  i64 index = -1;  ///< in the order of the data, -1 = unknown
  std::uint32_t tokens = 0;
  std::uint32_t prompt = 0;  ///< tokens that were given and not generated; `tokens` in pre-training
  std::uint32_t domain = kNoDomain;
  std::uint16_t group = 0, microbatch = 0;  ///< as recorded
  bool operator==(const TraceSequence&) const = default;
};

/// One step in memory.
struct TraceStep {
  i64 step = 0;
  std::vector<TraceSequence> sequences;  ///< in the order of the step's batch
  std::vector<i64> first_token;          ///< [sequences + 1]
  /// [layers of the header] expert ids [tokens * K], kNoExpert = none. Empty where only counts were kept.
  std::vector<std::vector<std::uint16_t>> choices;
  std::vector<std::vector<float>> weights;  ///< [layers][tokens * K]; empty without weights
  /// [layers][sequences * E] copies of each expert; always there.
  std::vector<std::vector<std::uint32_t>> counts;

  i64 num_sequences() const { return static_cast<i64>(sequences.size()); }
  i64 num_tokens() const { return first_token.empty() ? 0 : first_token.back(); }
  /// Every layer has its choices, not only their counts.
  bool has_choices() const;
};

/// Sets first_token from the sequences.
void index_tokens(TraceStep& step);
/// Fills counts from choices. [layers] of the header.
void count_choices(TraceStep& step, const TraceHeader& header);

/// Reads a trace: a file NAME.routes, or a folder of such files (one per rank) whose frames together are the
/// trace. The constructor looks at every frame once; then one step at a time is in memory.
class RoutingTrace {
 public:
  /// Throws IoError when a file cannot be read, InputError for one that is damaged: with file, byte, got and
  /// expected. A file that ends in the middle of a frame is good up to there.
  explicit RoutingTrace(const std::filesystem::path& path);
  ~RoutingTrace();
  RoutingTrace(RoutingTrace&&) noexcept;
  RoutingTrace& operator=(RoutingTrace&&) noexcept;

  const std::filesystem::path& path() const;
  const TraceHeader& header() const;
  /// Whole ones, ascending: every layer has every sequence of theirs once.
  const std::vector<i64>& steps() const;
  /// Missing parts, in words: a file that was cut, steps that are left out.
  const std::vector<std::string>& notes() const;
  i64 num_frames() const;  ///< whole frames, those of kind END included
  /// Throws InputError for a step that is not among steps(), and for ids, weights or sizes that cannot be.
  TraceStep read(i64 step) const;
  /// As read(), but only the sequences: choices, weights and counts are empty.
  TraceStep read_sequences(i64 step) const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

/// The steps from `first` to `last` one after another, as one. Throws InputError when there are none.
TraceStep read_steps(const RoutingTrace& trace, i64 first, i64 last);

}  // namespace hetermoe
