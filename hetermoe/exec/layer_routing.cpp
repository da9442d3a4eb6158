#include "hetermoe/exec/layer_routing.h"

#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/nn/gpu_kernels.h"

namespace hetermoe {
namespace {

at::Tensor shifted(const at::Tensor& index, i64 by) { return by == 0 ? index : index + by; }

}  // namespace

LayerRouting::LayerRouting(OwnerTable table, i64 count, c10::Device device)
    : owners(std::move(table)), bins(bins_of(owners, count)), num_owners(count) {
  if (count > 0 && kernels::has_kernels(device)) on_device = owners_on_device(owners, count, device);
}

RoutedCopies route_copies(const LayerRouting& routing, const at::Tensor& topk_TK, i64 first_token,
                          RowDedup dedup) {
  RoutedCopies out;
  if (routing.on_device) {
    out.split = split_by_owner_on_device(topk_TK, *routing.on_device, dedup);
    out.split.token_R = shifted(out.split.token_R, first_token);
    out.split.flat_C = shifted(out.split.flat_C, first_token * topk_TK.size(1));
    out.begins = out.split.begins;
    return out;
  }
  out.send = split_by_owner(to_host(topk_TK, "routing"), routing.owners, routing.num_owners, dedup);
  out.begins = begins_of(out.send, routing.bins);
  for (SendIndex& index : out.send) {
    index.token_R = shifted(index.token_R, first_token);
    index.flat_C = shifted(index.flat_C, first_token * topk_TK.size(1));
  }
  return out;
}

std::vector<at::Tensor> RoutedCopies::tokens_back() const {
  std::vector<at::Tensor> out;
  if (of_nodes.empty()) {
    for (const SendIndex& index : send) out.push_back(index.token_R);
  }
  for (const NodeTokens& node : of_nodes) {
    if (node.token_R.defined()) {
      out.push_back(node.token_R);
    } else {
      for (const std::size_t o : node.owners) out.push_back(send[o].token_R);
    }
  }
  return out;
}

void cut_by_owner(RoutedCopies& routed, const LayerRouting& routing, const std::vector<i64>& begins) {
  if (!routed.send.empty()) return;
  const i64* const row = begins.data();
  const i64* const copy = row + routing.num_owners + 1;
  for (i64 o = 0; o < routing.num_owners; ++o) {
    const i64 first = copy[routing.bins.begin[idx(o)]], end = copy[routing.bins.begin[idx(o) + 1]];
    const auto copies = [&](const at::Tensor& of_all) { return of_all.narrow(0, first, end - first); };
    routed.send.push_back({routed.split.token_R.narrow(0, row[o], row[o + 1] - row[o]),
                           copies(routed.split.row_C), copies(routed.split.expert_C),
                           copies(routed.split.flat_C)});
  }
  routed.split = {};
}

CopyGroups group_received(LayerRouting& routing, const std::vector<ReceivedIndex>& sources,
                          const std::vector<i64>& slot_of, const std::vector<i64>& offsets) {
  const auto num_slots = static_cast<i64>(offsets.size()) - 1;
  if (!routing.on_device) {
    CopyGroups groups = group_copies(sources, slot_of, num_slots);
    if (groups.offsets != offsets)
      fail<TransportError>("copies of experts", "they are not as many as their sources told");
    return groups;
  }
  CopyGroups groups;
  groups.offsets = offsets;
  std::vector<at::Tensor> rows, experts;
  std::vector<i64> begins = {0}, row_begins;
  for (const ReceivedIndex& source : sources) {
    rows.push_back(source.row_C);
    experts.push_back(source.expert_C);
    groups.source_copies.push_back(source.row_C.numel());
    begins.push_back(begins.back() + source.row_C.numel());
    row_begins.push_back(groups.num_rows);
    groups.num_rows += source.num_rows;
  }
  begins.insert(begins.end(), row_begins.begin(), row_begins.end());
  const auto num_sources = static_cast<i64>(sources.size());
  const c10::Device device = rows[0].device();
  const auto joined = [](const std::vector<at::Tensor>& parts) {
    return parts.size() == 1 ? parts[0].contiguous() : at::cat(parts);
  };
  if (!routing.slot_of.defined()) routing.slot_of = to_device(int32_tensor(slot_of), device);
  const at::Tensor all_begins = to_device(int32_tensor(begins), device);
  const DeviceGroups made =
      group_copies_on_device(joined(rows), joined(experts), all_begins.narrow(0, 0, num_sources + 1),
                             all_begins.narrow(0, num_sources + 1, num_sources), routing.slot_of, num_slots);
  groups.row_C = made.row_C;
  groups.arrival_C = made.arrival_C;
  groups.ends = made.offsets.narrow(0, 1, num_slots);
  const KeyOrder by_row = order_by_key(groups.row_C, groups.num_rows);
  groups.by_row_C = by_row.item_C;
  groups.begin_of_row_R1 = by_row.begin_K1;
  return groups;
}

}  // namespace hetermoe
