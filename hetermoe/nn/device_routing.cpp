#include "hetermoe/nn/device_routing.h"

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/kernels/launch.h"
#include "hetermoe/kernels/permute.h"

namespace hetermoe {
namespace {

constexpr i64 kChunkCopies = 1024;
constexpr i32 kThreads = 256;

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, at::ScalarType dtype, c10::Device device) {
  at::Tensor out = at::empty({static_cast<i64>(values.size())}, dtype);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<T>());
  return to_device(out, device);
}

/// How copies are cut: chunks of whole tokens.
struct Chunks {
  i64 copies = 0, size = 0;
  i64 count() const { return (copies + size - 1) / size; }
  /// To rank copies by key.
  kernels::Grid grid_of_ranks(i64 num_keys, c10::Device device) const {
    const i64 warps = kernels::warps_per_block(kThreads, device);
    return {count(), kThreads, kernels::bytes_for_ranks(size, num_keys, warps)};
  }
  /// To place copies behind those of all keys before: these are added up also where there are no copies.
  kernels::Grid grid_of_places(i64 num_keys) const {
    return {std::max<i64>(1, count()), kThreads, (num_keys + 1) * i64{sizeof(i32)}};
  }
};

Chunks chunks_of(i64 copies, i64 top_k) {
  HM_CHECK(copies < (i64{1} << 31), "{} copies do not fit into int32", copies);
  return {copies, std::max<i64>(1, kChunkCopies / top_k) * top_k};
}

at::Tensor int32(i64 count, const at::Tensor& like) {
  return at::empty({count}, like.options().dtype(at::kInt));
}
i32* data(const at::Tensor& x) { return x.mutable_data_ptr<i32>(); }

/// Counts by key, chunk after chunk.
struct Counted {
  at::Tensor rank_C, before, totals;
};

void scan(Counted& counted, i64 num_chunks, i64 num_keys) {
  constexpr i64 kKeys = kernels::kScannedKeys;
  counted.totals = int32(num_keys, counted.before);
  kernels::launch("scan_counts", {}, {(num_keys + kKeys - 1) / kKeys, kThreads, kThreads * i64{sizeof(i32)}},
                  kernels::ScanCounts{data(counted.before), data(counted.totals), num_chunks, num_keys},
                  counted.before.device());
}

Counted count(const at::Tensor& keys, const at::Tensor& map, const Chunks& chunks, i64 num_keys) {
  Counted out{int32(chunks.copies, keys), int32(chunks.count() * num_keys, keys), {}};
  kernels::launch(
      "count_keys", {keys.scalar_type()}, chunks.grid_of_ranks(num_keys, keys.device()),
      kernels::CountKeys{keys.const_data_ptr(), map.defined() ? map.const_data_ptr<i32>() : nullptr,
                         data(out.rank_C), data(out.before), chunks.copies, chunks.size, num_keys},
      keys.device());
  scan(out, chunks.count(), num_keys);
  return out;
}

kernels::Owners view_of(const DeviceOwners& owners) {
  return {owners.begin_E1.const_data_ptr<i32>(),
          owners.share_O.const_data_ptr<double>(),
          owners.destination_O.const_data_ptr<i32>(),
          owners.bin_O.const_data_ptr<i32>(),
          owners.num_experts,
          owners.num_bins,
          owners.num_destinations};
}

}  // namespace

DeviceOwners owners_on_device(const OwnerTable& owners, i64 num_destinations, c10::Device device) {
  std::vector<i32> begin = {0}, destination, bin, bin_of_destination = {0};
  std::vector<double> share;
  for (const std::vector<ExpertShare>& of_expert : owners) {
    for (const ExpertShare& owner : of_expert) {
      share.push_back(owner.share);
      destination.push_back(owner.destination);
    }
    begin.push_back(static_cast<i32>(share.size()));
  }
  // Owners stand in order of experts, so numbering them destination by destination gives the order of bins.
  bin.resize(share.size());
  i32 next = 0;
  for (i32 d = 0; d < num_destinations; ++d) {
    for (std::size_t o = 0; o < bin.size(); ++o) {
      if (destination[o] == d) bin[o] = next++;
    }
    bin_of_destination.push_back(next);
  }
  return {tensor_of(begin, at::kInt, device),
          tensor_of(share, at::kDouble, device),
          tensor_of(destination, at::kInt, device),
          tensor_of(bin, at::kInt, device),
          tensor_of(bin_of_destination, at::kInt, device),
          static_cast<i64>(owners.size()),
          next,
          num_destinations};
}

DeviceSplit split_by_owner_on_device(const at::Tensor& topk_TK, const DeviceOwners& owners, RowDedup dedup) {
  const at::Tensor topk = topk_TK.contiguous();
  const i64 copies = topk.numel(), top_k = topk.size(1), num_destinations = owners.num_destinations;
  const Chunks chunks = chunks_of(copies, top_k);
  const c10::Device device = topk.device();
  const auto make = [&](i64 size) { return int32(size, topk); };
  const Counted experts = count(topk, {}, chunks, owners.num_experts);
  DeviceSplit out{make(copies), make(copies), make(copies), make(copies), {}, make(num_destinations + 1), {}};
  const at::Tensor first = make(owners.share_O.numel()), bin_count = make(owners.num_bins),
                   bin_begin = make(owners.num_bins + 1);
  kernels::launch(
      "cut_shares", {}, {.blocks = 1, .threads = kThreads},
      kernels::CutShares{view_of(owners), data(experts.totals), data(owners.bin_of_destination_D1),
                         data(first), data(bin_count), data(bin_begin), data(out.copy_begin_D1)},
      device);
  const at::Tensor destination = make(copies), place = make(copies), row = make(copies);
  Counted rows{{}, make(chunks.count() * num_destinations), {}};
  kernels::launch("split_copies", {topk.scalar_type()}, chunks.grid_of_ranks(num_destinations, device),
                  kernels::SplitCopies{view_of(owners), topk.const_data_ptr(), data(experts.rank_C),
                                       data(experts.before), data(first), data(bin_begin), data(destination),
                                       data(place), data(row), data(rows.before), data(out.expert_C),
                                       data(out.flat_C), copies, chunks.size, top_k, dedup == RowDedup::kOn},
                  device);
  scan(rows, chunks.count(), num_destinations);
  out.row_begin_D1 = make(num_destinations + 1);
  kernels::launch("write_rows", {}, chunks.grid_of_places(num_destinations),
                  kernels::WriteRows{data(destination), data(place), data(row), data(rows.before),
                                     data(rows.totals), data(out.row_begin_D1), data(out.row_C),
                                     data(out.token_R), copies, chunks.size, top_k, num_destinations},
                  device);
  out.begins = at::cat({out.row_begin_D1, bin_begin});
  return out;
}

DeviceGroups group_copies_on_device(const at::Tensor& row_C, const at::Tensor& expert_C,
                                    const at::Tensor& source_begin, const at::Tensor& row_begin,
                                    const at::Tensor& slot_of, i64 num_slots) {
  const i64 copies = expert_C.numel();
  const Chunks chunks = chunks_of(copies, 1);
  const Counted slots = count(expert_C, slot_of, chunks, num_slots);
  DeviceGroups out{int32(copies, row_C), int32(copies, row_C), int32(num_slots + 1, row_C)};
  kernels::launch(
      "group_copies", {}, chunks.grid_of_places(num_slots),
      kernels::GroupCopies{expert_C.const_data_ptr<i32>(), row_C.const_data_ptr<i32>(),
                           slot_of.const_data_ptr<i32>(), source_begin.const_data_ptr<i32>(),
                           row_begin.const_data_ptr<i32>(), data(slots.rank_C), data(slots.before),
                           data(slots.totals), data(out.offsets), data(out.row_C), data(out.arrival_C),
                           copies, chunks.size, row_begin.numel(), num_slots},
      row_C.device());
  return out;
}

}  // namespace hetermoe
