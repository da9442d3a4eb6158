#pragma once
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/report/loss_svg.h"
#include "hetermoe/report/page_table.h"

namespace hetermoe {

/// Which device computes how many copies of which expert in one layer.
struct DeviceMap {
  std::string title;
  std::vector<std::string> devices;
  std::vector<std::vector<double>> copies;  ///< [devices][experts]
  std::vector<double> times;                ///< [devices] over a perfect division; 1 = as long as can be even
  std::vector<std::vector<double>> lent = {};  ///< [devices][experts] of the copies, by guests; empty = none
  std::string bars = "time over a perfect division";  ///< what the bars of `times` show
};

/// A layer under several balancers.
struct LayerMaps {
  i64 layer = 0;
  std::vector<DeviceMap> maps;  ///< the first is what the others are compared with
};

/// Experts that one balancer lends for single exchanges.
struct LentRow {
  std::string balancer;
  Bytes weights = 0, gradients = 0;
  Seconds seconds = 0;      ///< on the wire
  double hidden_share = 0;  ///< of them, what no other work waited for
};

struct BalancePage {
  std::string title;
  std::string label = "times are simulated";  ///< below the title; empty = none
  std::string maps_title = "Device by expert, before and after";
  std::string maps_text =
      "Copies of the last step that each device computes of each expert, the darker the more, on one scale; "
      "an "
      "orange frame is an expert that the device was lent. Right: the time that a device takes for them over "
      "a "
      "perfect division by speed (the line). The step waits for the longest bar of each exchange; here "
      "microbatches are added up.";
  std::string curves_title = "Over the steps";
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<PageTable> tables;  ///< one below the other, above the maps
  std::vector<LayerMaps> layers;  ///< the first is shown, the others are folded up
  LossPlot curves;                ///< over steps, or whatever its axes say
  std::vector<LentRow> lent;
};

/// One self-contained page: the tables, device x expert before and after, curves over steps, what was lent.
std::string balance_page(const BalancePage& page);

/// Standalone SVG of a map: a row for each device, a column for each expert, the darker the more copies (of
/// `most`), outlined where the expert is a guest. Each device has a bar of its time up to `longest`, with a
/// line at the time of a perfect division.
std::string device_map_svg(const DeviceMap& map, double most, double longest);

}  // namespace hetermoe
