#include "hetermoe/balance/sequence_order.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/balance/locality.h"
#include "hetermoe/balance/swap_gain.h"
#include "hetermoe/base/index.h"

namespace hetermoe {

std::vector<i32> order_sequences(const std::vector<std::vector<double>>& values,
                                 const std::vector<i64>& room) {
  std::vector<double> preference;
  for (const std::vector<double>& row : values)
    preference.push_back(*std::max_element(row.begin(), row.end()) -
                         std::accumulate(row.begin(), row.end(), 0.0) / real(row.size()));
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return preference[a] > preference[b]; });
  std::vector<i64> left = room;
  std::vector<i32> out(values.size(), 0);
  for (const std::size_t s : order) {
    std::size_t best = room.size();
    for (std::size_t p = 0; p < room.size(); ++p) {
      if (left[p] > 0 && (best == room.size() || values[s][p] > values[s][best])) best = p;
    }
    HM_CHECK(best < room.size(), "fewer places than sequences");
    --left[best];
    out[s] = static_cast<i32>(best);
  }
  for (bool better = true; better;) {
    better = false;
    for (std::size_t a = 0; a < out.size(); ++a) {
      for (std::size_t b = a + 1; b < out.size(); ++b) {
        const std::size_t x = idx(out[a]), y = idx(out[b]);
        if (!swap_gains(values[a][x], values[a][y], values[b][x], values[b][y])) continue;
        std::swap(out[a], out[b]);
        better = true;
      }
    }
  }
  return out;
}

i64 PlacesOfGroup::num_mixed() const { return std::count(mixed.begin(), mixed.end(), true); }

PlacesOfGroup places_of_group(const std::string& text, const Cluster& cluster, const Placement& placement,
                              i32 group, i32 layer) {
  PlacesOfGroup out;
  const Plan& plan = placement.plan();
  out.first = first_sequence(plan, group, 0);
  std::vector<DeviceId> devices = plan.groups[idx(group)].devices;
  std::sort(devices.begin(), devices.end());
  out.groups = device_groups(text, cluster, devices);
  const auto group_of = [&](DeviceId device) {
    for (std::size_t d = 0; d < out.groups.size(); ++d) {
      if (std::find(out.groups[d].begin(), out.groups[d].end(), device) != out.groups[d].end()) return d;
    }
    return out.groups.size();
  };
  std::vector<bool> has_source(out.groups.size(), false);
  out.mixed.assign(out.groups.size(), false);
  for (i32 m = 0; m < placement.num_microbatches(group); ++m) {
    out.of_microbatch.push_back(plan.groups[idx(group)].microbatches[idx(m)]);
    for (const TokenRange range : placement.ranges(group, layer, m)) {
      const std::size_t of_source = group_of(range.device);
      const i64 sequences = range.tokens() / plan.seq_len;
      has_source[of_source] = has_source[of_source] || sequences > 0;
      out.of_place.insert(out.of_place.end(), idx(sequences), static_cast<i32>(of_source));
    }
  }
  for (const DeviceId owner : placement.owners(group, layer)) {
    const std::size_t of_owner = group_of(owner);
    out.mixed[of_owner] = has_source[of_owner];
  }
  return out;
}

namespace {

/// [layers][device groups][experts] of the rows of clusters.
std::vector<Usage> usage_by(const PlacesOfGroup& places, std::size_t num_layers, std::size_t experts,
                            const Activations& rows, const Clusters& clusters) {
  const i64 num_mixed = places.num_mixed();
  const std::vector<std::vector<double>> of_mixed =
      usage_of(rows, clusters, groups_of_clusters(rows, clusters, num_mixed), num_mixed);
  std::vector<Usage> out;
  for (std::size_t l = 0; l < num_layers; ++l) {
    out.emplace_back();
    std::size_t next = 0;
    for (const bool mixed : places.mixed) {
      out.back().emplace_back(experts, 0);
      if (!mixed) continue;
      const auto from = of_mixed[next++].begin() + static_cast<std::ptrdiff_t>(l * experts);
      std::copy(from, from + static_cast<std::ptrdiff_t>(experts), out.back().back().begin());
    }
  }
  return out;
}

}  // namespace

std::vector<Usage> usage_by_clusters(const PlacesOfGroup& places, const TraceHeader& header,
                                     const TraceStep& step) {
  const i64 num_mixed = places.num_mixed();
  const Activations all = activations(header, step, -1, 0, "routes");
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(places.first);
  const Activations rows(begin, begin + static_cast<std::ptrdiff_t>(places.of_place.size()));
  if (num_mixed < 2 || static_cast<i64>(rows.size()) < num_mixed) return {};
  return usage_by(places, header.layers.size(), idx(header.num_experts), rows, k_means(rows, num_mixed));
}

std::vector<Usage> usage_by_domains(const PlacesOfGroup& places, const std::vector<i64>& layers,
                                    i64 num_experts, const DomainUse& use) {
  if (places.num_mixed() < 2 || use.empty()) return {};
  std::vector<i32> labels(use.copies.size());
  std::iota(labels.begin(), labels.end(), 0);
  return usage_by(places, layers.size(), idx(num_experts), use.copies,
                  labelled(use.copies, labels, static_cast<i64>(labels.size())));
}

namespace {

/// [sequences of the plan group][device groups] copies of a row whose experts are there.
std::vector<std::vector<double>> values_of(const Activations& rows, const PlacesOfGroup& places,
                                           const Placement& placement, i32 group,
                                           const std::vector<i64>& layers) {
  std::vector<std::vector<double>> at_home;  // [device groups][layers * experts] share that is computed there
  for (const std::vector<DeviceId>& devices : places.groups) {
    at_home.emplace_back();
    for (const i64 layer : layers) {
      for (const ExpertOwners& owners : placement.plan().groups[idx(group)].layers[idx(layer)].experts) {
        double share = 0;
        for (const ExpertOwner& owner : owners)
          share += std::find(devices.begin(), devices.end(), owner.device) != devices.end() ? owner.share : 0;
        at_home.back().push_back(share);
      }
    }
  }
  std::vector<std::vector<double>> out;
  for (const std::vector<double>& row : rows) {
    out.emplace_back();
    for (const std::vector<double>& shares : at_home)
      out.back().push_back(std::inner_product(row.begin(), row.end(), shares.begin(), 0.0));
  }
  return out;
}

/// Sequences `begin` to `end` of the plan group change places among themselves.
void order_window(const PlacesOfGroup& places, const std::vector<std::vector<double>>& values,
                  std::size_t begin, std::size_t end, std::vector<i64>& from) {
  std::vector<i64> room(places.groups.size(), 0);
  double as_they_come = 0, ordered = 0;
  for (std::size_t s = begin; s < end; ++s) {
    ++room[idx(places.of_place[s])];
    as_they_come += values[s][idx(places.of_place[s])];
  }
  const std::vector<std::vector<double>> of_window(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                                   values.begin() + static_cast<std::ptrdiff_t>(end));
  const std::vector<i32> kinds = order_sequences(of_window, room);
  for (std::size_t s = 0; s < kinds.size(); ++s) ordered += of_window[s][idx(kinds[s])];
  if (ordered <= as_they_come) return;
  const std::size_t first = idx(places.first);
  std::vector<std::vector<i64>> waiting(room.size());
  for (std::size_t s = end; s-- > begin;)
    waiting[idx(kinds[s - begin])].push_back(static_cast<i64>(first + s));
  for (std::size_t place = begin; place < end; ++place) {
    std::vector<i64>& next = waiting[idx(places.of_place[place])];
    from[first + place] = next.back();
    next.pop_back();
  }
}

}  // namespace

void order_places(const PlacesOfGroup& places, SequenceOrder order, const Placement& placement, i32 group,
                  const std::vector<i64>& layers, const Activations& rows, std::vector<i64>& from) {
  const std::size_t count = places.of_place.size();
  const auto first = rows.begin() + static_cast<std::ptrdiff_t>(places.first);
  const Activations of_group(first, first + static_cast<std::ptrdiff_t>(count));
  const std::vector<std::vector<double>> values = values_of(of_group, places, placement, group, layers);
  if (order == SequenceOrder::kWithinStep) return order_window(places, values, 0, count, from);
  std::size_t begin = 0;
  for (const i64 sequences : places.of_microbatch) {
    order_window(places, values, begin, begin + idx(sequences), from);
    begin += idx(sequences);
  }
}

Activations chosen_rows(const TraceRouting& step) {
  return activations(step.header(), step.step(), -1, 0, "routes");
}

TraceStep permuted(const TraceStep& step, const TraceHeader& header, const std::vector<i64>& from) {
  TraceStep out;
  out.step = step.step;
  const std::size_t k = idx(header.top_k);
  out.choices.resize(step.choices.size());
  for (std::size_t place = 0; place < from.size(); ++place) {
    const std::size_t of = idx(from[place]);
    TraceSequence sequence = step.sequences[of];
    sequence.group = step.sequences[place].group;
    sequence.microbatch = step.sequences[place].microbatch;
    out.sequences.push_back(sequence);
    for (std::size_t l = 0; l < step.choices.size(); ++l) {
      const auto begin = step.choices[l].begin() + static_cast<std::ptrdiff_t>(idx(step.first_token[of]) * k);
      const auto end =
          step.choices[l].begin() + static_cast<std::ptrdiff_t>(idx(step.first_token[of + 1]) * k);
      out.choices[l].insert(out.choices[l].end(), begin, end);
    }
  }
  out.weights.resize(step.choices.size());
  index_tokens(out);
  count_choices(out, header);
  return out;
}

}  // namespace hetermoe
