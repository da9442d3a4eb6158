#pragma once
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"

namespace hetermoe {

/// A fresh folder that goes with the test. Tests run side by side: a fixed name below /tmp would be shared.
class WorkFolder {
 public:
  WorkFolder() {
    std::string name = std::filesystem::temp_directory_path() / "hetermoe_XXXXXX";
    HM_CHECK(::mkdtemp(name.data()) != nullptr, "no temporary folder {}", name);
    path_ = name;
  }
  ~WorkFolder() { std::filesystem::remove_all(path_); }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string file(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    write_text(path_ / name, text);
    return *this / name;
  }
  /// Names of all files and folders below, sorted.
  std::vector<std::string> contents() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
      names.push_back(std::filesystem::relative(entry.path(), path_).string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace hetermoe
