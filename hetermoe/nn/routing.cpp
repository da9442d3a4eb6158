#include "hetermoe/nn/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

at::Tensor index_tensor(const std::vector<i64>& values) {
  at::Tensor out = at::empty({static_cast<i64>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<i64>());
  return out;
}

/// One message under construction: copies are met in token order.
struct Message {
  std::vector<i64> tokens, row, expert, flat;

  void add(i64 token, i64 expert_id, i64 flat_position, RowDedup dedup) {
    if (dedup == RowDedup::kOff || tokens.empty() || tokens.back() != token) tokens.push_back(token);
    row.push_back(static_cast<i64>(tokens.size()) - 1);
    expert.push_back(expert_id);
    flat.push_back(flat_position);
  }

  SendIndex finish(i64 num_experts) const {
    std::vector<std::size_t> begin(static_cast<std::size_t>(num_experts) + 1, 0);
    for (const i64 id : expert) ++begin[static_cast<std::size_t>(id) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    // Rows ascend within each expert because copies were met in token order: a counting sort keeps that.
    std::vector<i64> sorted_row(row.size()), sorted_expert(row.size()), sorted_flat(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::size_t place = begin[static_cast<std::size_t>(expert[i])]++;
      sorted_row[place] = row[i];
      sorted_expert[place] = expert[i];
      sorted_flat[place] = flat[i];
    }
    return {index_tensor(tokens), index_tensor(sorted_row), index_tensor(sorted_expert),
            index_tensor(sorted_flat)};
  }
};

}  // namespace

std::vector<SendIndex> split_by_owner(const at::Tensor& topk_TK, const OwnerTable& owners,
                                      i64 num_destinations, RowDedup dedup) {
  const at::Tensor topk = topk_TK.contiguous();
  HM_CHECK(topk.device().is_cpu() && topk.scalar_type() == at::kLong && topk.dim() == 2,
           "top-k ids are int64 on the CPU");
  const i64 top_k = topk.size(1);
  const i64* ids = topk.const_data_ptr<i64>();
  const std::vector<i32> destinations =
      copy_destinations(std::span(ids, static_cast<std::size_t>(topk.numel())), owners);
  std::vector<Message> messages(static_cast<std::size_t>(num_destinations));
  for (i64 i = 0; i < topk.numel(); ++i) {
    const i32 destination = destinations[static_cast<std::size_t>(i)];
    if (destination >= 0) messages.at(static_cast<std::size_t>(destination)).add(i / top_k, ids[i], i, dedup);
  }
  std::vector<SendIndex> out;
  for (const Message& message : messages) out.push_back(message.finish(static_cast<i64>(owners.size())));
  return out;
}

at::Tensor int32_tensor(std::span<const i64> values) {
  at::Tensor out = at::empty({static_cast<i64>(values.size())}, at::kInt);
  std::transform(values.begin(), values.end(), out.mutable_data_ptr<i32>(),
                 [](i64 value) { return static_cast<i32>(value); });
  return out;
}

OwnerBins bins_of(const OwnerTable& owners, i64 num_destinations) {
  OwnerBins bins{{0}, {}};
  for (i64 d = 0; d < num_destinations; ++d) {
    for (std::size_t e = 0; e < owners.size(); ++e) {
      const bool has = std::any_of(owners[e].begin(), owners[e].end(),
                                   [&](const ExpertShare& share) { return share.destination == d; });
      if (has) bins.experts.push_back(static_cast<ExpertId>(e));
    }
    bins.begin.push_back(static_cast<i64>(bins.experts.size()));
  }
  return bins;
}

at::Tensor begins_of(const std::vector<SendIndex>& send, const OwnerBins& bins) {
  at::Tensor begins = at::empty({static_cast<i64>(send.size() + 1 + bins.experts.size() + 1)}, at::kInt);
  i32* next = begins.mutable_data_ptr<i32>();
  i32 rows = 0, copies = 0;
  *next++ = rows;
  for (const SendIndex& index : send) *next++ = rows += static_cast<i32>(index.num_rows());
  *next++ = copies;
  for (std::size_t d = 0; d < send.size(); ++d) {
    const i64* expert = send[d].expert_C.const_data_ptr<i64>();
    const i64* const end = expert + send[d].num_copies();
    for (i64 bin = bins.begin[d]; bin < bins.begin[d + 1]; ++bin) {
      const i64* const first = expert;
      while (expert != end && *expert == bins.experts[static_cast<std::size_t>(bin)]) ++expert;
      *next++ = copies += static_cast<i32>(expert - first);
    }
  }
  return begins;
}

CopyGroups group_copies(const std::vector<ReceivedIndex>& sources, const std::vector<i64>& slot_of,
                        i64 num_slots) {
  CopyGroups out;
  out.offsets.assign(static_cast<std::size_t>(num_slots) + 1, 0);
  for (const ReceivedIndex& source : sources) {
    out.source_copies.push_back(source.row_C.numel());
    const i64* experts = source.expert_C.const_data_ptr<i64>();
    for (i64 i = 0; i < source.expert_C.numel(); ++i) {
      const i64 slot = slot_of.at(static_cast<std::size_t>(experts[i]));
      HM_CHECK(slot >= 0, "received a row for expert {}, which is not here", experts[i]);
      ++out.offsets[static_cast<std::size_t>(slot) + 1];
    }
  }
  std::partial_sum(out.offsets.begin(), out.offsets.end(), out.offsets.begin());
  std::vector<i64> next(out.offsets.begin(), out.offsets.end() - 1);
  std::vector<i64> row(static_cast<std::size_t>(out.num_copies())), arrival(row.size());
  i64 arrived = 0;
  for (const ReceivedIndex& source : sources) {
    const i64* experts = source.expert_C.const_data_ptr<i64>();
    const i64* rows = source.row_C.const_data_ptr<i64>();
    for (i64 i = 0; i < source.expert_C.numel(); ++i, ++arrived) {
      const i64 slot = slot_of[static_cast<std::size_t>(experts[i])];
      const auto place = static_cast<std::size_t>(next[static_cast<std::size_t>(slot)]++);
      row[place] = out.num_rows + rows[i];
      arrival[place] = arrived;
    }
    out.num_rows += source.num_rows;
  }
  out.row_C = index_tensor(row);
  out.arrival_C = index_tensor(arrival);
  return out;
}

CopyGroups groups_of_slots(const CopyGroups& groups, i64 first, i64 count) {
  const auto begin = groups.offsets.begin() + first;
  CopyGroups out;
  for (auto offset = begin; offset <= begin + count; ++offset) out.offsets.push_back(*offset - *begin);
  out.row_C = groups.row_C.narrow(0, *begin, out.num_copies());
  out.arrival_C = groups.arrival_C.narrow(0, *begin, out.num_copies());
  out.num_rows = groups.num_rows;
  if (groups.ends.defined()) out.ends = groups.ends.narrow(0, first, count) - *begin;
  return out;
}

at::Tensor to_grouped(const CopyGroups& groups, const at::Tensor& arrival_values_C) {
  return arrival_values_C.index_select(0, groups.arrival_C.to(arrival_values_C.device()));
}

at::Tensor to_arrival(const CopyGroups& groups, const at::Tensor& grouped_values_C) {
  return at::empty_like(grouped_values_C)
      .index_copy_(0, groups.arrival_C.to(grouped_values_C.device(), at::kLong), grouped_values_C);
}

}  // namespace hetermoe
