#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/model/model_config.h"

// Whether experts compute for longer than their rows travel: then the transfers can hide.
namespace hetermoe {

/// Seconds that the experts of a layer compute over seconds that their rows travel, forward or backward, with
/// the experts on `places` devices that each have the link: 1.5 width (link / peak) places / (places - 1).
/// Rows and products in 16 bits; what hidden size, experts and tokens there are does not matter.
double compute_over_transfer(double width, BytesPerSecond link, FlopsPerSecond peak, i64 places);

/// A link of a node by data sheets, which its devices share. Inside there is one for each type of device.
struct LinkHiding {
  std::string node, devices, link;  ///< "new", "H100 x8"; link: inside or network
  std::string type;                 ///< "H100"; of the network empty
  i64 places = 0;                   ///< devices of the node; of the network, nodes
  BytesPerSecond rate = 0;          ///< of a device; of the network, of the node
  FlopsPerSecond peak = 0;          ///< of a device; of the network, of all on the node
  double width = 0;                 ///< expert width at which both take as long
  /// compute_over_transfer() of the experts of a model.
  double of(const ModelConfig& model) const { return static_cast<double>(model.expert_hidden) / width; }
};
/// Nodes that are alike once. A device alone on its node has no link inside.
std::vector<LinkHiding> hiding_links(const Cluster& cluster);
/// {"node", "devices", "link", "type", "places", "bytes_s", "peak_flop_s", "width"}.
Json to_json(const LinkHiding& link);
/// Of all hiding_links(); with a model "compute_over_transfer", too.
Json hiding_json(const Cluster& cluster, const std::optional<ModelConfig>& model);

}  // namespace hetermoe
