#pragma once
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "hetermoe/placement/node_rows.h"
#include "hetermoe/placement/placement.h"

// How many rows travel: the schedule never holds token counts, a routing load does.
namespace hetermoe {

/// An expert that is lent for an exchange. Owners are named by their positions, ascending.
struct Guest {
  i32 expert = 0, from = 0, to = 0;  ///< `from` is the expert's first host
  bool operator==(const Guest&) const = default;
};

/// One exchange (group, layer, microbatch, chunk) between the sources (devices of the shares row, in its
/// order) and the owners (ascending). A row is a token on the wire; a copy is a (row, expert) pair that is
/// computed.
struct ExchangeLoad {
  std::vector<double> tokens;          ///< [sources] tokens of the chunk
  std::vector<double> rows_per_token;  ///< [owners] product form: rows(s, o) = tokens[s] * rows_per_token[o]
  std::vector<double> copies_per_token;  ///< [owners] likewise
  std::vector<double> rows,
      copies;  ///< [sources * owners] recorded form; the product form leaves these empty
  std::vector<double> instances = {};  ///< [owners] experts that each runs; empty = those it owns
  std::vector<Guest> guests = {};      ///< of the layer and microbatch, the same in all chunks
  std::vector<double> guest_copies =
      {};  ///< [owners] those of their copies that guests compute; empty = none
  /// Where results go to the devices of the next layer (CombineTo::kNext): [receivers] their tokens of the
  /// chunk, and [receivers * owners] their rows in the recorded form. Empty = results go to the sources.
  std::vector<double> next_tokens = {}, next_rows = {};
  /// Where a token goes once to each node (NodeRows), the rows to nodes with owners: [nodes] product form,
  /// and [sources * nodes] recorded form.
  std::vector<double> node_rows_per_token = {}, node_rows = {};

  std::size_t num_sources() const { return tokens.size(); }
  std::size_t num_owners() const { return rows_per_token.size(); }
  bool is_product() const { return rows.empty(); }
  double rows_between(std::size_t source, std::size_t owner) const {
    return is_product() ? tokens[source] * rows_per_token[owner] : rows[source * num_owners() + owner];
  }
  double copies_between(std::size_t source, std::size_t owner) const {
    return is_product() ? tokens[source] * copies_per_token[owner] : copies[source * num_owners() + owner];
  }
  /// Rows that an owner returns.
  double next_rows_between(std::size_t receiver, std::size_t owner) const {
    return is_product() ? next_tokens[receiver] * rows_per_token[owner]
                        : next_rows[receiver * num_owners() + owner];
  }
  /// Distinct rows of a source for all owners of a node.
  double rows_to_node(std::size_t source, std::size_t node) const;
  double rows_at(std::size_t owner) const;    ///< rows that an owner receives
  double copies_at(std::size_t owner) const;  ///< copies that an owner computes
};

class RoutingLoad {
 public:
  virtual ~RoutingLoad() = default;
  virtual ExchangeLoad exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                                i32 chunk) const = 0;
  /// Every layer and microbatch with equal placement has an equal load, so results may be shared between
  /// them.
  virtual bool is_uniform() const { return true; }
};

/// Expected load when every token picks k different experts. Sets of k are drawn with a chance proportional
/// to the product of their experts' weights (conditional Poisson sampling): exact for even popularity.
class ExpectedRouting : public RoutingLoad {
 public:
  /// popularity: [num_experts] share of all copies, sums to 1; empty = even. An expert cannot be picked twice
  /// by a token, so that shares above 1 / k are cut and the others grow.
  ExpectedRouting(const ModelConfig& model, const std::vector<double>& popularity = {});
  ExchangeLoad exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                        i32 chunk) const override;

 private:
  /// Share of an expert's rows that a device computes.
  struct Held {
    std::size_t expert;
    double share;
  };
  /// Each expert once, with the sum of its shares.
  static std::vector<Held> joined(std::vector<Held> held);
  /// Rows per token that go to a device with these experts.
  double rows_per_token(const std::vector<Held>& held) const;

  std::vector<double> chance_;        // [num_experts] of an expert to be among the k of a token; sums to k
  std::vector<double> weights_;       // [num_experts] for drawing sets; 0 where the chance is 1
  i64 num_drawn_;                     // k less the experts that are always picked
  double all_sets_;                   // sum over all sets of their weight
  std::vector<double> hit_by_count_;  // even popularity: chance that a token needs one of so many experts
};

/// Popularity proportional to 1 / rank^exponent.
std::vector<double> zipf_popularity(i64 num_experts, double exponent);

/// The routing that a run recorded. Replaying it separates routing error from cost error.
class RecordedRouting : public RoutingLoad {
 public:
  void set(i32 group, i32 layer, i32 microbatch, i32 chunk, ExchangeLoad load) {
    loads_[{group, layer, microbatch, chunk}] = std::move(load);
  }
  /// Throws InputError when the run did not record this exchange.
  ExchangeLoad exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                        i32 chunk) const override;
  bool is_uniform() const override { return false; }

 private:
  std::map<std::tuple<i32, i32, i32, i32>, ExchangeLoad> loads_;
};

/// Tokens of chunk `chunk` out of `chunks` when `tokens` are cut into near-equal runs: [begin, end).
std::pair<i64, i64> chunk_range(i64 tokens, i32 chunk, i32 chunks);

}  // namespace hetermoe
