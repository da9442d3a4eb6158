#pragma once
#include <map>
#include <string>
#include <vector>

#include "hetermoe/model/model_config.h"
#include "tests/support/error_of.h"

// Small configs of every family, and what reading a changed one says.
namespace hetermoe {

/// A small valid config of each family, to be changed by a test.
inline Json small(const std::string& family) {
  static const std::map<std::string, std::string> names = {{"mixtral", "tiny"},
                                                           {"qwen3_moe", "tiny-qwen3"},
                                                           {"olmoe", "tiny-olmoe"},
                                                           {"deepseek_v2", "tiny-deepseek-v2"},
                                                           {"deepseek_v3", "tiny-deepseek-v3"},
                                                           {"llama", "tiny-llama"},
                                                           {"qwen3", "tiny-qwen3-dense"},
                                                           {"mistral", "tiny-mistral"}};
  return read_json(find_model(names.at(family)));
}

inline ModelConfig read(const Json& config) { return model_from_hf(config, "config.json"); }

inline std::string config_error(const Json& config) {
  return error_of<ConfigError>([&] { read(config); });
}

inline std::string load_error(const std::string& name) {
  return error_of<ConfigError>([&] { load_model(name); });
}

inline Json with(Json config, const std::string& key, const Json& value) {
  config[key] = value;
  return config;
}
inline Json without(Json config, const std::string& key) {
  config.erase(key);
  return config;
}
inline Json renamed(Json config, const std::string& from, const std::string& to) {
  config[to] = config.at(from);
  config.erase(from);
  return config;
}

inline std::vector<std::string> unsupported_with(const std::string& family, const std::string& key,
                                                 const Json& value) {
  return read(with(small(family), key, value)).unsupported;
}

inline const std::vector<std::string> kFamilies = {"mixtral",     "qwen3_moe", "olmoe", "deepseek_v2",
                                                   "deepseek_v3", "llama",     "qwen3", "mistral"};

}  // namespace hetermoe
