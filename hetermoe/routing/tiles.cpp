#include "hetermoe/routing/tiles.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/routing/analysis.h"

namespace hetermoe {
namespace {

/// The chance that none of `drawn` of `all` rows is among `own`: drawn without putting back.
double miss_chance(i64 all, i64 own, i64 drawn) {
  if (own == 0) return 1;
  if (all - own < drawn) return 0;
  const auto log_ways = [](i64 n, i64 k) {
    return std::lgamma(real(n + 1)) - std::lgamma(real(k + 1)) - std::lgamma(real(n - k + 1));
  };
  return std::exp(log_ways(all - own, drawn) - log_ways(all, drawn));
}

/// [sources] rows of an expert in sequences [begin, end) of a step.
std::vector<i64> rows_by_source(const std::vector<std::uint32_t>& counts, i64 num_experts, i64 expert,
                                i64 begin, i64 end, i64 sources) {
  std::vector<i64> rows(idx(sources), 0);
  for (i64 s = 0; s < sources; ++s) {
    const i64 first = begin + (end - begin) * s / sources, last = begin + (end - begin) * (s + 1) / sources;
    for (i64 sequence = first; sequence < last; ++sequence)
      rows[idx(s)] += counts[idx(sequence * num_experts + expert)];
  }
  return rows;
}

}  // namespace

TileSources tile_sources(const std::vector<i64>& rows_of_source, i64 tile) {
  const i64 all = std::accumulate(rows_of_source.begin(), rows_of_source.end(), i64{0});
  TileSources out;
  for (i64 begin = 0; begin < all; begin += tile) {
    const i64 end = std::min(all, begin + tile);
    double sorted = 0, shuffled = 0;
    i64 first = 0;  // row of a source
    for (const i64 rows : rows_of_source) {
      if (rows > 0 && first < end && first + rows > begin) ++sorted;
      shuffled += 1 - miss_chance(all, rows, end - begin);
      first += rows;
    }
    out.sorted.push_back(sorted), out.shuffled.push_back(shuffled);
  }
  return out;
}

TileAnalyser::TileAnalyser(const TraceHeader& header, i64 tile, i64 sources)
    : num_experts_(header.num_experts), tile_(tile), sources_(sources) {
  for (const i64 layer : header.layers) layers_.push_back({layer, {}, {}});
}

void TileAnalyser::add(const TraceStep& step) {
  for (const auto& [begin, end] : microbatches_of(step)) {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      for (i64 e = 0; e < num_experts_; ++e) {
        const TileSources tiles =
            tile_sources(rows_by_source(step.counts[l], num_experts_, e, begin, end, sources_), tile_);
        for (const double sources : tiles.sorted) layers_[l].sorted.add(sources);
        for (const double sources : tiles.shuffled) layers_[l].shuffled.add(sources);
      }
    }
  }
}

Json to_json(const TileAnalyser& tiles) {
  Json layers = Json::array();
  const auto mean = [](const FigureRange& range) {
    return range.count > 0 ? Json(range.mean) : Json(nullptr);
  };
  for (const LayerTiles& layer : tiles.layers())
    layers.push_back({{"layer", layer.layer},
                      {"tiles", layer.sorted.count},
                      {"sorted", mean(layer.sorted)},
                      {"unsorted", mean(layer.shuffled)}});
  return {{"tile", tiles.tile()}, {"sources", tiles.sources()}, {"layers", layers}};
}

}  // namespace hetermoe
