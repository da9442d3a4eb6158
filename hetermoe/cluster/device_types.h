#pragma once
#include <string>
#include <vector>

#include "hetermoe/cluster/cluster.h"

// Shared by the catalogue and the cluster file.
namespace hetermoe {

/// Names of device types are equal whatever their case.
bool same_name(const std::string& a, const std::string& b);

/// nullptr when no type has that name.
const DeviceType* find_type(const std::vector<DeviceType>& types, const std::string& name);
const DeviceType* find_catalogue_device(const std::string& name);

/// Throws ConfigError that names types near an unknown one, and how `who` may describe its own.
[[noreturn]] void refuse_device_type(const std::string& name, const std::string& where,
                                     const std::vector<std::string>& known, const std::string& who);

/// Throws ConfigError when a figure that has no default is neither among those of an entry nor known of the
/// type that it goes out from.
void check_complete(const Json& figures, const DeviceType& type, const std::string& name,
                    const std::string& where);

}  // namespace hetermoe
