#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/base/fields.h"
#include "hetermoe/base/types.h"

// Where the parameters of a part live when they need not all be on the devices that compute with them.
namespace hetermoe {

/// device: on every device that has the part. host: in the main memory of their nodes. sharded: divided over
/// the devices that have the part.
enum class Residence { kDevice, kHost, kSharded };
template <>
struct EnumNames<Residence> {
  static const std::vector<std::string>& names() {
    static const std::vector<std::string> all = names_of_all<Residence>({"device", "host", "sharded"});
    return all;
  }
};

/// Home of one part of one layer. Weights on the host visit a device while it computes with them; their
/// optimizer is on the host, too. Sharded weights (of embedding, attention parts and head) are gathered from
/// all devices that have the part for as long as these compute with them; their optimizer is sharded, too.
struct Home {
  Residence weights = Residence::kDevice;
  Residence optimizer = Residence::kDevice;  ///< fp32 master, moments
  std::vector<DeviceId> devices = {};        ///< for whom this holds; empty = all that have the part
  bool operator==(const Home&) const = default;
  template <class V>
  void fields(V& v) {
    v("weights", weights, "device; host: fetched for each use; or sharded: gathered for each use");
    v("optimizer", optimizer, "device, host, or sharded over the devices that have the part");
    v("devices", devices, "devices for which this holds, empty = all that have the part", at_least(0));
  }
};

/// How many visits of a kind fit on a device at once; 2 = the next one comes while this one is used.
struct VisitSlots {
  i32 attention = 2;  ///< attention parts of layers
  i32 experts = 2;    ///< experts of layers
  i32 saved = 2;      ///< of saved activations: inputs of layers, and as many times rows of experts
  bool operator==(const VisitSlots&) const = default;
  template <class V>
  void fields(V& v) {
    v("attention", attention, "attention parts from the host, or gathered, that are on a device at once",
      between(1, 1024));
    v("experts", experts, "layers of experts from the host that are on a device at once", between(1, 1024));
    v("saved", saved,
      "where saved activations are on the host: inputs of layers that are on a device at once, and likewise "
      "rows of experts",
      between(1, 1024));
  }
};

}  // namespace hetermoe
