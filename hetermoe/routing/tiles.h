#pragma once
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/routing/metrics.h"
#include "hetermoe/routing/trace.h"

// For how many sources a tile of rows waits. Experts compute their rows in tiles; a tile may start when its
// rows are there. Sorted by (expert, source) a tile has rows of few sources, so the first ones can start
// while rows of other sources travel (MegaScale-MoE, arXiv 2505.11432).
namespace hetermoe {

/// Distinct sources of the tiles of one expert, of which each source has so many rows: the last tile may be
/// smaller. In the order of sources, then in random order, of which this is the expectation.
struct TileSources {
  std::vector<double> sorted, shuffled;  ///< [tiles]
};
TileSources tile_sources(const std::vector<i64>& rows_of_source, i64 tile);

/// Over the experts and microbatches of a layer: distinct sources of a tile.
struct LayerTiles {
  i64 layer = 0;
  FigureRange sorted, shuffled;
};

/// Adds up a trace step by step. The sequences of each microbatch as recorded are dealt to `sources` devices
/// in order, as evenly as whole sequences allow.
class TileAnalyser {
 public:
  TileAnalyser(const TraceHeader& header, i64 tile, i64 sources);
  void add(const TraceStep& step);
  const std::vector<LayerTiles>& layers() const { return layers_; }
  i64 tile() const { return tile_; }
  i64 sources() const { return sources_; }

 private:
  i64 num_experts_, tile_, sources_;
  std::vector<LayerTiles> layers_;
};

/// {"tile", "sources", "layers": [{"layer", "tiles", "sorted", "unsorted"}]}; null for layers without rows.
Json to_json(const TileAnalyser& tiles);

}  // namespace hetermoe
